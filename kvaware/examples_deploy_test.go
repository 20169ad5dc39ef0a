// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// service is one of a compose file.
type service struct {
	Image, Build, Restart string
	Command               []string
	Environment           map[string]string
	Volumes, Ports        []string
	Expose                []string
	IPC                   string
	Deploy                any
	StopGracePeriod       string `yaml:"stop_grace_period"`
}

func TestTheComposeFileIsOfOnePiece(t *testing.T) {
	var compose struct {
		Name     string
		VLLM     any `yaml:"x-vllm"`
		Services map[string]service
		Volumes  map[string]any
	}
	strictly(t, example(t, "compose/compose.yaml"), &compose)

	// offers tells whether host:port is a service with that port.
	offers := func(address string) bool {
		host, port, _ := strings.Cut(address, ":")
		if host == "caddy" {
			return strings.Contains(example(t, "compose/Caddyfile"), "\n:"+port+" {")
		}
		s, is := compose.Services[host]
		return is && (slices.Contains(s.Expose, port) || slices.ContainsFunc(s.Ports, func(p string) bool { return strings.HasSuffix(p, ":"+port) }))
	}
	upstreams := regexp.MustCompile(`reverse_proxy (.*) \{`).FindStringSubmatch(example(t, "compose/Caddyfile"))[1]
	for address := range strings.FieldsSeq(upstreams) {
		if !offers(address) {
			t.Errorf("the Caddyfile's upstream %s is no service", address)
		}
		host, port, _ := strings.Cut(address, ":")
		listens(t, compose.Services[host].Command, port, compose.Services[host].Expose)
	}

	var scrape struct {
		Global    map[string]string
		RuleFiles []string `yaml:"rule_files"`
		Configs   []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	strictly(t, example(t, "compose/prometheus.yaml"), &scrape)
	for _, c := range scrape.Configs {
		for _, target := range c.Static[0].Targets {
			if !offers(target) {
				t.Errorf("%s scrapes %s, which is not there", c.Job, target)
			}
		}
	}

	// What is mounted is there, and what is named in a container is mounted.
	mounted := map[string]bool{}
	for name, s := range compose.Services {
		for _, v := range s.Volumes {
			from, rest, _ := strings.Cut(v, ":")
			to, _, _ := strings.Cut(rest, ":")
			mounted[name+":"+to] = true
			if strings.HasPrefix(from, ".") {
				example(t, filepath.Join("compose", from))
			} else if _, is := compose.Volumes[from]; !is {
				t.Errorf("%s: no volume %s", name, from)
			}
		}
		if s.Build != "" {
			example(t, filepath.Join("compose", s.Build, "Dockerfile"))
		}
	}
	for _, file := range scrape.RuleFiles {
		if !mounted["prometheus:"+file] {
			t.Errorf("Prometheus has no %s", file)
		}
	}
	var providers struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	strictly(t, example(t, "compose/grafana-dashboards.yaml"), &providers)
	if !mounted["grafana:"+providers.Providers[0].Options.Path+"/kv_aware.json"] {
		t.Errorf("Grafana has no dashboard in %s", providers.Providers[0].Options.Path)
	}
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, Type, UID, URL string
			IsDefault            bool `yaml:"isDefault"`
		}
	}
	strictly(t, example(t, "compose/grafana-datasource.yaml"), &sources)
	if sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("Grafana asks %s", sources.Datasources[0].URL)
	}
}

// listens checks that vLLM's arguments have it listen at port, and publish KV events
// at ports that are open.
func listens(t *testing.T, args []string, port string, open []string) {
	t.Helper()
	if !slices.Contains(args, "--port="+port) || !slices.Contains(open, port) {
		t.Errorf("vLLM does not listen at %s: %q", port, args)
	}
	for _, arg := range args {
		config, is := strings.CutPrefix(arg, "--kv-events-config=")
		if !is {
			continue
		}
		var events struct {
			Enable    bool   `json:"enable_kv_cache_events"`
			Publisher string `json:"publisher"`
			Endpoint  string `json:"endpoint"`
			Replay    string `json:"replay_endpoint"`
		}
		if err := json.Unmarshal([]byte(config), &events); err != nil || !events.Enable || events.Publisher != "zmq" {
			t.Errorf("%s: %v", config, err)
		}
		for _, endpoint := range []string{events.Endpoint, events.Replay} {
			if port, is := strings.CutPrefix(endpoint, "tcp://*:"); !is || !slices.Contains(open, port) {
				t.Errorf("nothing reaches vLLM's %s", endpoint)
			}
		}
		return
	}
	t.Errorf("vLLM publishes no KV events: %q", args)
}

// manifest is what the test looks at of a Kubernetes object.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		ClusterIP string `yaml:"clusterIP"`
		Selector  map[string]any
		Ports     []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				Containers []struct {
					Name, Image string
					Args        []string
					Ports       []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					ReadinessProbe probe `yaml:"readinessProbe"`
					LivenessProbe  probe `yaml:"livenessProbe"`
					VolumeMounts   []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []volume
			}
		}
	}
}

type volume struct {
	Name      string
	ConfigMap struct{ Name string } `yaml:"configMap"`
	Claim     struct {
		Name string `yaml:"claimName"`
	} `yaml:"persistentVolumeClaim"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func TestTheKubernetesManifestsAreOfOnePiece(t *testing.T) {
	var kustomization struct {
		APIVersion, Kind, Namespace string
		Resources                   []string
		Generators                  []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
		Images []struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(example(t, "kubernetes/kustomization.yaml")), &kustomization); err != nil {
		t.Fatal(err)
	}
	objects := map[string]manifest{}
	for _, file := range kustomization.Resources {
		decoder := yaml.NewDecoder(strings.NewReader(example(t, "kubernetes/"+file)))
		for {
			var m manifest
			if err := decoder.Decode(&m); err != nil {
				if err.Error() != "EOF" {
					t.Fatal(err)
				}
				break
			}
			if _, twice := objects[m.Kind+"/"+m.Metadata.Name]; twice {
				t.Errorf("two of %s %s", m.Kind, m.Metadata.Name)
			}
			objects[m.Kind+"/"+m.Metadata.Name] = m
		}
	}
	caddyfile := example(t, "kubernetes/"+kustomization.Generators[0].Files[0])
	for key, m := range objects {
		if m.Kind != "Deployment" {
			continue
		}
		service, is := objects["Service/"+m.Metadata.Name]
		pod := m.Spec.Template
		if !is || service.Spec.Selector["app"] != pod.Metadata.Labels["app"] {
			t.Errorf("%s has no service", key)
		}
		container := pod.Spec.Containers[0]
		ports := map[string]int{}
		var open []string
		for _, p := range container.Ports {
			ports[p.Name] = p.ContainerPort
			open = append(open, strconv.Itoa(p.ContainerPort))
		}
		for _, p := range service.Spec.Ports {
			if ports[p.TargetPort] == 0 {
				t.Errorf("%s: no port %s", key, p.TargetPort)
			}
		}
		for _, p := range []probe{container.ReadinessProbe, container.LivenessProbe} {
			if p.HTTPGet.Port != "" && ports[p.HTTPGet.Port] == 0 {
				t.Errorf("%s: probes %s", key, p.HTTPGet.Port)
			}
		}
		for _, mount := range container.VolumeMounts {
			if !slices.ContainsFunc(pod.Spec.Volumes, func(v volume) bool { return v.Name == mount.Name }) {
				t.Errorf("%s: no volume %s", key, mount.Name)
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap.Name != "" && v.ConfigMap.Name != kustomization.Generators[0].Name {
				t.Errorf("%s: no config map %s", key, v.ConfigMap.Name)
			}
			if _, is := objects["PersistentVolumeClaim/"+v.Claim.Name]; v.Claim.Name != "" && !is {
				t.Errorf("%s: no claim %s", key, v.Claim.Name)
			}
		}
		switch m.Metadata.Name {
		case "vllm":
			if service.Spec.ClusterIP != "None" {
				t.Error("the service of vLLM has an address of its own")
			}
			dynamic := regexp.MustCompile(`dynamic a (\S+) (\d+)`).FindStringSubmatch(caddyfile)
			if dynamic[1] != service.Metadata.Name || dynamic[2] != strconv.Itoa(ports["http"]) {
				t.Errorf("the Caddyfile looks for %q", dynamic)
			}
			listens(t, container.Args, dynamic[2], open)
		case "caddy":
			for _, p := range ports {
				if !strings.Contains(caddyfile, "\n:"+strconv.Itoa(p)+" {") {
					t.Errorf("the Caddyfile has no :%d", p)
				}
			}
			if pod.Metadata.Annotations["prometheus.io/port"] != strconv.Itoa(ports["metrics"]) || container.Image != kustomization.Images[0].Name {
				t.Errorf("%+v %s", pod.Metadata.Annotations, container.Image)
			}
		}
	}
	if len(objects) < 5 {
		t.Errorf("%d objects", len(objects))
	}
}
