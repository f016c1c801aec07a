"""Data connections between slots: non-blocking sockets, owned by the mailbox thread."""
