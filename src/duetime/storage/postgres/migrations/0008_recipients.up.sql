-- Recipients: how and when each is to be reached.

create table duetime.recipient (
    ref           text primary key,
    tz            text,
    channels      json not null default '[]',
    quiet         text,
    muted         json not null default '[]',
    most_per_hour integer,
    updated_at    timestamptz not null default duetime.now()
);
create index reminder_recipient on duetime.reminder (recipient) where status = 'armed';
