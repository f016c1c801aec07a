"""Inside one Spark task: the slot's mailbox loop, its tasks, their inputs and outputs, and the network."""
