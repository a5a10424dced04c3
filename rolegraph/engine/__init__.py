"""Engine: compiles a spec to a plan, runs the plan's episodes, and trains the roles."""
