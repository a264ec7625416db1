# The set of a further task, `clinics`, from that of the first:
#   sed --file further.sed server-a.yml > server-a-clinics.yml
s/\b\(name\|serviceName\|app\): \(server-[ab]\|dealer\)\b/\1: \2-clinics/
s/7\([34]\)0\([123]\)/7\11\2/
s#--config, settings#--config, clinics/settings#
s#/precad/\(task\|settings\)\.toml#/precad/clinics/\1.toml#
