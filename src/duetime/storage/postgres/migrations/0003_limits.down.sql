drop function duetime.claim_limited(bigint, text, integer, boolean);
