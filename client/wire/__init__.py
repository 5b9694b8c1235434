"""The protocol between server and client: frames, records, arrays, credentials."""
