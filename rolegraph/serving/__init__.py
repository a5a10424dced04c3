"""HTTP server with bounded connections, and chats in the form of OpenAI's API, for the viewer, the local
service and the endpoint of an agent program."""
