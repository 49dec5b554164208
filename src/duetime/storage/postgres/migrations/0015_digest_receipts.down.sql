drop index duetime.delivery_digest;
