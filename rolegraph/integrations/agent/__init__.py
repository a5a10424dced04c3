"""Agent programs as roles: a program asks the role's model by OpenAI's API, and its output is the answer."""
