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
{{- with get $f $value -}}{{- $_ := set $backend $key . -}}{{- end -}}
{{- end -}}
{{- $conf := dict "EnableNFTables" $f.enableNFTables "Backend" $backend -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) -}}
{{- fail "podCidr and podCidrv6 are both empty: pods need addresses of one family at least" -}}
{{- end -}}
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

{{- /* cni-conf.json: the Go flannel's chart has it as a text. */ -}}
{{- define "flannel.cniConf" -}}
{{- $conf := .Values.flannel.cniConf -}}
{{- if kindIs "string" $conf -}}
{{- $text := $conf -}}
{{- $conf = fromJson $text -}}
{{- if not (hasKey $conf "plugins") -}}
{{- fail (printf "flannel.cniConf is not a CNI configuration with plugins: %s" (default $text $conf.Error)) -}}
{{- end -}}
{{- end -}}
{{- toPrettyJson $conf -}}
{{- end -}}

{{- /* What the Go flannel's chart can do and this one cannot. */ -}}
{{- define "flannel.refusals" -}}
{{- with .Values.netpol -}}
{{- if .enabled -}}
{{- fail "netpol.enabled: this chart does not install network policies; set it to false and install kube-network-policies on its own" -}}
{{- end -}}
{{- end -}}
{{- if hasSuffix "flannel-io/flannel" .Values.flannel.image.repository -}}
{{- fail "flannel.image.repository is the Go flannel's image, which does not know the flags of this chart: remove flannel.image from your values, or name this flannel's image" -}}
{{- end -}}
{{- end -}}

{{- define "flannel.image" -}}
{{ .Values.flannel.image.repository }}:{{ .Values.flannel.image.tag }}
{{- end -}}

{{- /* Another image has the plugin, too, but it need not be ours. */ -}}
{{- define "flannel.cniInstall" -}}
{{- if .Values.flannel.flannel_cni.image.repository -}}
["cp", "-f", "/flannel", "/opt/cni/bin/flannel"]
{{- else -}}
["/flannel", "--install", "/opt/cni/bin"]
{{- end -}}
{{- end -}}

{{- define "flannel.cniImage" -}}
{{- $own := .Values.flannel.flannel_cni.image -}}
{{- if $own.repository -}}{{ $own.repository }}:{{ $own.tag }}{{- else -}}{{ include "flannel.image" . }}{{- end -}}
{{- end -}}

{{- /* What annotations of flannel begin with, as flanneld completes it. */ -}}
{{- define "flannel.annotationPrefix" -}}
{{- $prefix := "flannel.alpha.coreos.com" -}}
{{- range concat .Values.flannel.args .Values.flannel.extraArgs -}}
{{- if hasPrefix "--kube-annotation-prefix=" . -}}
{{- $prefix = trimPrefix "--kube-annotation-prefix=" . -}}
{{- end -}}
{{- end -}}
{{- if not (contains "/" $prefix) -}}
{{- $prefix = printf "%s/" $prefix -}}
{{- else if not (or (hasSuffix "/" $prefix) (hasSuffix "-" $prefix)) -}}
{{- $prefix = printf "%s-" $prefix -}}
{{- end -}}
{{- $prefix -}}
{{- end -}}
