"""Link and compute model of a client, and their emulation on a device."""
