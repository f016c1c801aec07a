"""What driver and slots say to each other: messages, frames, the handshake."""
