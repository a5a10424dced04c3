"""Episodes as OpenTelemetry spans."""
