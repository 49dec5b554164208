drop index duetime.digest_sending;
