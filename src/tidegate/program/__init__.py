"""What a program is made of: operations that state their own facts, transformations, partitioning, and the checks."""
