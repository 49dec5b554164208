-- Every worker looks every few seconds for digests that failed: of those that are being sent.
create index digest_sending on duetime.digest (id) where status = 'sending';
