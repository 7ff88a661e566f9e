"""The guarded store: what it refuses, what a verdict is tied to, and the transaction that moves the champion."""
