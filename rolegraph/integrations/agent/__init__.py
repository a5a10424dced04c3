"""Agent programs as roles: a program calls the role's model by a provider's API, and outputs the answer."""
