"""A spec to an immutable Plan, or to every fault that stands in the way."""
