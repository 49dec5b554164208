drop index duetime_digest_sending;
