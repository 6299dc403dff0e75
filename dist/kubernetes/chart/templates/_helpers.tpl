{{- /* net-conf.json as an object. */ -}}
{{- define "flannel.netConf" -}}
{{- $f := .Values.flannel -}}
{{- if $f.netConf -}}
{{- toPrettyJson $f.netConf -}}
{{- else -}}
{{- $backend := dict "Type" $f.backend -}}
{{- $keys := dict -}}
{{- if eq $f.backend "vxlan" -}}
{{- $keys = dict "backendPort" "Port" "vni" "VNI" "GBP" "GBP" "directRouting" "DirectRouting" "mtu" "MTU" "macPrefix" "MacPrefix" -}}
{{- else if eq $f.backend "wireguard" -}}
{{- $keys = dict "backendPort" "ListenPort" "backendPortv6" "ListenPortV6" "psk" "PSK" "mtu" "MTU" "tunnelMode" "Mode" "keepaliveInterval" "PersistentKeepaliveInterval" -}}
{{- else if eq $f.backend "ipip" -}}
{{- $keys = dict "directRouting" "DirectRouting" -}}
{{- else if eq $f.backend "udp" -}}
{{- $keys = dict "backendPort" "Port" -}}
{{- end -}}
{{- range $value, $key := $keys -}}
{{- if hasKey $f $value -}}{{- $_ := set $backend $key (get $f $value) -}}{{- end -}}
{{- end -}}
{{- $conf := dict "EnableNFTables" $f.enableNFTables "Backend" $backend -}}
{{- if .Values.podCidr -}}
{{- $_ := set $conf "Network" .Values.podCidr -}}
{{- else -}}
{{- $_ := set $conf "EnableIPv4" false -}}
{{- end -}}
{{- if .Values.podCidrv6 -}}
{{- $_ := set $conf "EnableIPv6" true -}}
{{- $_ := set $conf "IPv6Network" .Values.podCidrv6 -}}
{{- end -}}
{{- if $f.masqueradeExclude -}}{{- $_ := set $conf "MasqueradeExclude" $f.masqueradeExclude -}}{{- end -}}
{{- toPrettyJson $conf -}}
{{- end -}}
{{- end -}}

{{- define "flannel.image" -}}
{{ .Values.flannel.image.repository }}:{{ .Values.flannel.image.tag }}
{{- end -}}

{{- define "flannel.cniImage" -}}
{{- $own := .Values.flannel.flannel_cni.image -}}
{{- if $own.repository -}}{{ $own.repository }}:{{ $own.tag }}{{- else -}}{{ include "flannel.image" . }}{{- end -}}
{{- end -}}
