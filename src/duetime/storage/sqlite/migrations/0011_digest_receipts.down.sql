drop index duetime_delivery_digest;
