{{- define "fedgc.image" -}}
image: "{{ .root.Values.image.prefix }}fedgc-{{ .role }}:{{ .root.Values.image.tag }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: ["ALL"]}
{{- end }}

{{- define "fedgc.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fedgc.claim" -}}
- metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources:
      requests: {storage: {{ .size }}}
{{- end }}

{{- define "fedgc.database" -}}
{{- with .Values.server.database }}
- name: FEDGC_DB
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: url}
{{- end }}
{{- end }}

{{- define "fedgc.passphrase" -}}
{{- with .passphrase }}
- name: FEDGC_PASSPHRASE
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: passphrase}
{{- end }}
{{- end }}
