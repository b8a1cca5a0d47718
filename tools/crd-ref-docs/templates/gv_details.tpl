{{- define "gvDetails" }}
API group and version: `{{ .GroupVersionString }}`. `kubectl explain servicegroup.spec` shows
the same texts. What the conditions and reasons in `status` mean: [conditions.md](conditions.md).
Complete examples are in [config/samples](../../config/samples).

Kinds: {{ range $i, $kind := .SortedKinds }}{{ if $i }}, {{ end }}{{ $.TypeForKind $kind | markdownRenderTypeLink }}{{ end }}
{{ range .SortedKinds }}{{ $type := $.TypeForKind . }}{{ template "type" $type }}{{ end }}
{{- range .SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end }}
{{- end -}}
