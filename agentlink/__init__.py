"""The contract between the controller and the agents: values, bounds and one codec."""
