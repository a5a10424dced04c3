"""Outlook on a spec: its prompts (`rolegraph preview`), and its first step (`rolegraph forecast`)."""
