{{- define "culvert.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "culvert.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "culvert.labels" -}}
{{ include "culvert.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Refuses values that could not work. */}}
{{- define "culvert.check" -}}
{{- if and (not .Values.database.existingSecret) (gt (int .Values.replicaCount) 1) -}}
{{- fail "more than one node needs a database: set database.existingSecret" -}}
{{- end -}}
{{- if and .Values.database.existingSecret (not .Values.masterKey.existingSecret) -}}
{{- fail "with a database all nodes need the same master key: run `kubectl create secret generic culvert-master-key --from-literal=master.key=$(openssl rand -hex 32)` and set masterKey.existingSecret" -}}
{{- end -}}
{{- end -}}

{{/* Settings as variables: a nested map becomes CULVERT_EDGE__DOMAIN and so on. Takes a map with `prefix` and `map`. */}}
{{- define "culvert.variables" -}}
{{- $prefix := .prefix -}}
{{- range $key, $value := .map }}
{{- $name := printf "%s%s" $prefix (upper $key) }}
{{- if kindIs "map" $value }}
{{- include "culvert.variables" (dict "prefix" (printf "%s__" $name) "map" $value) }}
{{- else }}
- name: {{ $name }}
{{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
{{- else if kindIs "float64" $value }}
  value: {{ int64 $value | toString | quote }}
{{- else }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The pods of both kinds of workload. */}}
{{- define "culvert.pod" -}}
metadata:
  labels:
    {{- include "culvert.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "culvert.name" . }}
  automountServiceAccountToken: false
  # The variables that Kubernetes makes of a Service named `culvert` look like settings.
  enableServiceLinks: false
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add .Values.termination.noticeSeconds .Values.termination.drainSeconds 30 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: culvert
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["serve"]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: ["ALL"]
      env:
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: CULVERT_NODE_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: CULVERT_DATA_DIR
          value: /var/lib/culvert/data
        - name: CULVERT_API__ADDR
          value: 0.0.0.0:8420
        - name: CULVERT_METRICS__ADDR
          value: 0.0.0.0:9420
        - name: CULVERT_EDGE__PUBLIC_HTTP_PORT
          value: {{ .Values.service.edge.httpPort | quote }}
        - name: CULVERT_EDGE__PUBLIC_HTTPS_PORT
          value: {{ .Values.service.edge.httpsPort | quote }}
        {{- with .Values.service.edge.tcpPorts }}
        {{- if .count }}
        - name: CULVERT_EDGE__TCP_PORTS
          value: {{ printf "%d-%d" (int .first) (sub (add .first .count) 1) | quote }}
        {{- end }}
        {{- end }}
        {{- if .Values.service.kubernetes.enabled }}
        - name: CULVERT_KUBERNETES__ADDR
          value: {{ printf "0.0.0.0:%d" (int .Values.service.kubernetes.port) }}
        {{- end }}
        - name: CULVERT_SHUTDOWN__DRAIN
          value: {{ printf "%ds" (int .Values.termination.drainSeconds) }}
        {{- if .Values.database.existingSecret }}
        - name: CULVERT_NODES__ADVERTISED_ADDR
          value: {{ .Values.nodes.advertisedAddr | quote }}
        - name: CULVERT_DATABASE_URL
          valueFrom:
            secretKeyRef:
              name: {{ .Values.database.existingSecret }}
              key: url
        {{- end }}
        {{- if .Values.masterKey.existingSecret }}
        - name: CULVERT_SECRETS__KEY_FILE
          value: /run/secrets/culvert/master.key
        {{- end }}
        {{- if .Values.bootstrap.existingSecret }}
        - name: CULVERT_BOOTSTRAP__API_KEY
          valueFrom:
            secretKeyRef:
              name: {{ .Values.bootstrap.existingSecret }}
              key: api-key
        {{- end }}
        {{- with .Values.settings }}
        {{- include "culvert.variables" (dict "prefix" "CULVERT_" "map" .) | trim | nindent 8 }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - { name: http, containerPort: 8080 }
        - { name: https, containerPort: 8443 }
        - { name: agents, containerPort: 8441 }
        - { name: ssh, containerPort: 2222 }
        {{- if .Values.service.kubernetes.enabled }}
        - { name: kubernetes, containerPort: {{ .Values.service.kubernetes.port }} }
        {{- end }}
        - { name: nodes, containerPort: 8442 }
        - { name: api, containerPort: 8420 }
        - { name: metrics, containerPort: 9420 }
      # A start may migrate the database.
      startupProbe:
        httpGet: { path: /readyz, port: api }
        periodSeconds: 2
        timeoutSeconds: 6
        failureThreshold: 450
      readinessProbe:
        {{- $roles := dig "roles" list (default dict .Values.settings) }}
        {{- if or (not $roles) (has "edge" $roles) }}
        # Traffic needs no database.
        httpGet: { path: "/readyz?role=edge", port: api }
        {{- else }}
        httpGet: { path: /readyz, port: api }
        {{- end }}
        periodSeconds: 5
        timeoutSeconds: 6
        failureThreshold: 2
      livenessProbe:
        httpGet: { path: /healthz, port: api }
        periodSeconds: 10
        timeoutSeconds: 6
        failureThreshold: 6
      lifecycle:
        # Load balancers learn of the end of a pod only after it began.
        preStop:
          sleep:
            seconds: {{ .Values.termination.noticeSeconds }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /var/lib/culvert
        {{- if .Values.masterKey.existingSecret }}
        - name: master-key
          mountPath: /run/secrets/culvert
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- if or .Values.database.existingSecret .Values.masterKey.existingSecret .Values.extraVolumes }}
  volumes:
    {{- if .Values.database.existingSecret }}
    - name: data
      emptyDir: {}
    {{- end }}
    {{- if .Values.masterKey.existingSecret }}
    - name: master-key
      secret:
        secretName: {{ .Values.masterKey.existingSecret }}
        defaultMode: 0440
        items:
          - key: master.key
            path: master.key
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "culvert.selector" . | nindent 10 }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
