{{- define "gvList" -}}
<!-- Written by make api-reference from api/v1. Change the comments there. -->
# The API, field by field
{{ range . }}{{ template "gvDetails" . }}{{ end -}}
{{- end -}}
