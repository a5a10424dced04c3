"""The machine: a spec goes in, episodes come out."""
