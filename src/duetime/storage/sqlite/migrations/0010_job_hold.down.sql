alter table duetime_job drop column hold;
