{{- define "type" -}}
{{- if markdownShouldRenderType . }}
## {{ .Name }}

{{ .Doc }}
{{ if .IsAlias }}
Type: {{ markdownRenderTypeLink .UnderlyingType }}{{ range .Validation }}. {{ . }}{{ end }}
{{ end }}
{{- if .References }}
Used in: {{ range $i, $r := .SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $r }}{{ end }}
{{ end }}
{{- if .Members }}
| field | description | default | limits |
|---|---|---|---|
{{- range .Members }}
| `{{ .Name }}` _{{ markdownRenderType .Type }}_ | {{ template "type_members" . }} | {{ if and .Default (ne .Name "status") }}`{{ .Default }}`{{ end }} | {{ range $i, $v := .Validation }}{{ if $i }}<br>{{ end }}{{ markdownRenderFieldDoc $v }}{{ end }} |
{{- end }}
{{ end }}
{{- if .EnumValues }}
| value | description |
|---|---|
{{- range .EnumValues }}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc }} |
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}
