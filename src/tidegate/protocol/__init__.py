"""The protocol between driver and slots: messages, frames, the handshake."""
