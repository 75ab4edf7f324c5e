{{- /* The gateway shares memory, the store and the folder of its socket with the site's server. */ -}}
{{- define "fedgc.gateway" -}}
{{- $site := .Values.site -}}
- name: gateway
  {{- include "fedgc.image" (dict "root" . "role" "server") | nindent 2 }}
  args: ["deploy", "client"]
  env:
    - name: FEDGC_SERVER
      value: {{ required "site.consortium: needed the address of the consortium's server" $site.consortium | quote }}
    - name: FEDGC_NAME
      value: {{ required "site.name: needed the name of this site" $site.name | quote }}
    - {name: FEDGC_KEYS, value: /gateway-keys}
    - {name: FEDGC_STATE, value: /state/gateway}
    - {name: FEDGC_CACHE, value: /state/gateway}
    - {name: FLWR_HOME, value: /state/gateway/flower}
    - name: FEDGC_NODE_CONFIG
      value: {{ printf `site-fleet="local" site-home="/state/flower" site-settings="%s" %s` $site.settings $site.nodeConfig | trim | quote }}
    - {name: FEDGC_LEAVE_GRACE_S, value: "20"}
    - {name: FEDGC_POLICY, value: {{ $site.policy | quote }}}
    {{- include "fedgc.database" . | nindent 4 }}
    {{- include "fedgc.passphrase" $site | nindent 4 }}
  resources: {{- toYaml $site.resources | nindent 4 }}
  startupProbe:
    exec: {command: ["fedgc", "deploy", "health", "client", "--live"]}
    periodSeconds: 10
    timeoutSeconds: 15
    failureThreshold: 30
  readinessProbe:
    exec: {command: ["fedgc", "deploy", "health", "client"]}
    periodSeconds: 60
    timeoutSeconds: 15
  livenessProbe:
    exec: {command: ["fedgc", "deploy", "health", "client", "--live"]}
    periodSeconds: 60
    timeoutSeconds: 15
  volumeMounts:
    - {name: state, mountPath: /state}
    - {name: server-keys, mountPath: /keys, readOnly: true}
    - {name: gateway-keys, mountPath: /gateway-keys, readOnly: true}
    - {name: gateway-scratch, mountPath: /tmp}
{{- end }}
