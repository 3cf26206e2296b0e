//! Redis and Valkey: locks shared with Redisson and with every SET NX client.
