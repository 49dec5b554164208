drop view duetime.reminders;
drop table duetime.channel_use;
drop table duetime.channel_rate;
alter table duetime.reminder
    drop column acknowledged_at, drop column acknowledged_by, drop column snoozes;
delete from duetime.delivery as d
where d.status in ('pending', 'failed')
   or exists (select from duetime.delivery as n
              where n.reminder_id = d.reminder_id and n.channel = d.channel and n.round > d.round);
alter table duetime.delivery
    drop constraint delivery_reminder_id_round_channel_key,
    drop column round, drop column attempts, drop column error, drop column next_at,
    alter column sent_at set default duetime.now(),
    alter column sent_at set not null,
    add constraint delivery_reminder_id_channel_key unique (reminder_id, channel);
create view duetime.reminders as
select r.id, s.ref as subject, s.scope, r.due_at, r.rule_id as rule, r.recipient, r.time, r.run_at,
    r.status, r.reason, r.job_id, r.ended_at, d.channel, d.external_id, d.status as delivery
from duetime.reminder as r
join duetime.subject as s on s.id = r.subject_id
left join duetime.delivery as d on d.reminder_id = r.id;
