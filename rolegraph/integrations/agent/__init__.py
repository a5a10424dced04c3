"""Agent programs as roles: a program asks the role's model by a provider's API; its output is the answer."""
