// Package deploy checks examples/deploy and examples/ci: manifests with the types and the Pod Security checks of
// Kubernetes, the compose file with the loader of compose, the configuration of NATS with NATS' own parser, and
// definitions of CI jobs with linters and schemas.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const examples = "../../examples/deploy"

// manifests are the files of one use, decoded.
type manifests struct {
	documents       []document
	namespaces      []*corev1.Namespace
	configMaps      []*corev1.ConfigMap
	services        []*corev1.Service
	claims          []*corev1.PersistentVolumeClaim
	networkPolicies []*networkingv1.NetworkPolicy
	budgets         []*policyv1.PodDisruptionBudget
	statefulSets    []*appsv1.StatefulSet
	jobs            []*batchv1.Job
	pods            []pod
}

// document is one object in YAML.
type document struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	text []byte
}

// pod is a pod, or the template of the workload of its name.
type pod struct {
	namespace, name string
	*corev1.PodTemplateSpec
}

func (p pod) String() string { return p.namespace + "/" + p.name }

// readManifests decodes files strictly.
func readManifests(t *testing.T, patterns ...string) *manifests {
	t.Helper()
	m := &manifests{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(examples, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.decode(text); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	return m
}

func (m *manifests) decode(text []byte) error {
	reader := yamlutil.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer func() { _ = reader.Close() }()
	buffer := make([]byte, 1<<20)
	for {
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.decodeDocument(bytes.Clone(buffer[:n])); err != nil {
			return err
		}
	}
}

func (m *manifests) decodeDocument(text []byte) error {
	d := document{text: text}
	var meta struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return err
	}
	d.TypeMeta, d.ObjectMeta = meta.TypeMeta, meta.ObjectMeta
	m.documents = append(m.documents, d)
	var err error
	switch kind := d.APIVersion + " " + d.Kind; kind {
	case "v1 Namespace":
		m.namespaces, err = decodeStrictly(m.namespaces, text)
	case "v1 ConfigMap":
		m.configMaps, err = decodeStrictly(m.configMaps, text)
	case "v1 Service":
		m.services, err = decodeStrictly(m.services, text)
	case "v1 PersistentVolumeClaim":
		m.claims, err = decodeStrictly(m.claims, text)
	case "v1 Pod":
		var list []*corev1.Pod
		if list, err = decodeStrictly(list, text); err == nil {
			m.pods = append(m.pods, pod{d.Namespace, d.Name, &corev1.PodTemplateSpec{ObjectMeta: list[0].ObjectMeta, Spec: list[0].Spec}})
		}
	case "networking.k8s.io/v1 NetworkPolicy":
		m.networkPolicies, err = decodeStrictly(m.networkPolicies, text)
	case "policy/v1 PodDisruptionBudget":
		m.budgets, err = decodeStrictly(m.budgets, text)
	case "apps/v1 StatefulSet":
		if m.statefulSets, err = decodeStrictly(m.statefulSets, text); err == nil {
			m.pods = append(m.pods, pod{d.Namespace, d.Name, &m.statefulSets[len(m.statefulSets)-1].Spec.Template})
		}
	case "batch/v1 Job":
		if m.jobs, err = decodeStrictly(m.jobs, text); err == nil {
			m.pods = append(m.pods, pod{d.Namespace, d.Name, &m.jobs[len(m.jobs)-1].Spec.Template})
		}
	default:
		return fmt.Errorf("%s %s: unknown kind", kind, d.Name)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", d.Kind, d.Name, err)
	}
	return nil
}

func decodeStrictly[T any](list []*T, text []byte) ([]*T, error) {
	object := new(T)
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		return list, err
	}
	return append(list, object), nil
}

func readAll(t *testing.T) *manifests {
	t.Helper()
	return readManifests(t, "kubernetes/*.yaml", "shards/*.yaml", "view.yaml")
}

// TestUnknownFields checks that a misspelt field is found in each manifest.
func TestUnknownFields(t *testing.T) {
	for _, d := range slices.Concat(readAll(t).documents, readManifests(t, ciManifest).documents) {
		for _, field := range []string{"metadata:\n", "spec:\n"} {
			broken := bytes.Replace(d.text, []byte("\n"+field), []byte("\n"+strings.Replace(field, ":", "s:", 1)), 1)
			if bytes.Equal(broken, d.text) && field == "spec:\n" {
				continue // an object without
			}
			if err := new(manifests).decodeDocument(broken); err == nil || !strings.Contains(err.Error(), "unknown field") {
				t.Errorf("%s %s with %s accepted: %v", d.Kind, d.Name, strings.TrimSpace(field), err)
			}
		}
	}
}

// violations returns the reasons for which a pod does not fit a level.
func violations(t *testing.T, p pod, level api.Level) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, result := range evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &p.ObjectMeta, &p.Spec) {
		if !result.Allowed {
			reasons = append(reasons, result.ForbiddenReason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

func isWorker(p pod) bool { return p.Labels["app"] == "worker" }

// TestPodSecurity checks that every pod fits the level restricted, which the namespace enforces.
func TestPodSecurity(t *testing.T) {
	m := readAll(t)
	for _, p := range slices.Concat(m.pods, readManifests(t, ciManifest).pods, []pod{tektonPod(t)}) {
		if got := violations(t, p, api.LevelRestricted); len(got) > 0 {
			t.Errorf("%s: %q", p, got)
		}
		// The control: the profile that sandboxes in namespaces of their own would need.
		unconfine(p.PodTemplateSpec)
		if got := violations(t, p, api.LevelRestricted); !slices.Contains(got, "seccompProfile") {
			t.Errorf("%s, unconfined: %q", p, got)
		}
	}
	if len(m.namespaces) != 1 || m.namespaces[0].Labels[api.EnforceLevelLabel] != string(api.LevelRestricted) {
		t.Errorf("namespaces %v", m.namespaces)
	}
}

// unconfine gives a pod the seccomp profile Unconfined.
func unconfine(p *corev1.PodTemplateSpec) {
	unconfined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].SecurityContext.SeccompProfile = unconfined
	}
}

// secretCommand is how README.md makes a secret.
var secretCommand = regexp.MustCompile(`kubectl -n (\S+) create secret generic (\S+)((?: +--from-literal=\S+)+)`)

// TestReferences checks that what the manifests name exists.
func TestReferences(t *testing.T) {
	m := readAll(t)
	readme, err := os.ReadFile(filepath.Join(examples, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	used := map[string]bool{}
	use := func(format string, args ...any) { used[fmt.Sprintf(format, args...)] = true }
	for _, s := range secretCommand.FindAllStringSubmatch(strings.ReplaceAll(string(readme), "\\\n", " "), -1) {
		for _, literal := range strings.Fields(s[3]) {
			key, _, _ := strings.Cut(strings.TrimPrefix(literal, "--from-literal="), "=")
			known[fmt.Sprintf("secret %s/%s: %s", s[1], s[2], key)] = true
		}
	}
	for _, c := range m.configMaps {
		known[fmt.Sprintf("configmap %s/%s", c.Namespace, c.Name)] = true
	}
	for _, c := range m.claims {
		known[fmt.Sprintf("claim %s/%s", c.Namespace, c.Name)] = true
	}
	for _, p := range m.pods {
		claims := map[string]bool{}
		for _, s := range m.statefulSets {
			for _, c := range s.Spec.VolumeClaimTemplates {
				claims[c.Name] = s.Name == p.name
			}
		}
		for _, v := range p.Spec.Volumes {
			claims[v.Name] = true
			if v.ConfigMap != nil {
				use("configmap %s/%s", p.namespace, v.ConfigMap.Name)
			}
			if v.PersistentVolumeClaim != nil {
				use("claim %s/%s", p.namespace, v.PersistentVolumeClaim.ClaimName)
			}
		}
		for _, c := range p.Spec.Containers {
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					use("secret %s/%s: %s", p.namespace, e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
				}
			}
			for _, v := range c.VolumeMounts {
				if !claims[v.Name] {
					t.Errorf("%s mounts %s, which is no volume of it", p, v.Name)
				}
			}
			checkPorts(t, p, c)
		}
	}
	for name := range used {
		if !known[name] {
			t.Errorf("%s is used, and defined nowhere", name)
		}
	}
	for name := range known {
		if !used[name] {
			t.Errorf("%s is defined, and used nowhere", name)
		}
	}
	checkSelectors(t, m)
}

// checkPorts checks that probes name ports of the container.
func checkPorts(t *testing.T, p pod, c corev1.Container) {
	t.Helper()
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil && !slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == probe.HTTPGet.Port.StrVal }) {
			t.Errorf("%s probes %s, which is no port of it", p, probe.HTTPGet.Port.StrVal)
		}
	}
}

// checkSelectors checks that selectors find pods, and that services have ports of them.
func checkSelectors(t *testing.T, m *manifests) {
	t.Helper()
	find := func(what, namespace string, want map[string]string) []pod {
		found := m.selectPods(namespace, want)
		if len(found) == 0 {
			t.Errorf("%s selects %v in %s: no pod has these labels", what, want, namespace)
		}
		return found
	}
	for _, s := range m.services {
		for _, p := range find("service "+s.Name, s.Namespace, s.Spec.Selector) {
			for _, port := range s.Spec.Ports {
				if !slices.ContainsFunc(p.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.ContainerPort == port.Port }) {
					t.Errorf("service %s: pods have no port %d", s.Name, port.Port)
				}
			}
		}
	}
	for _, b := range m.budgets {
		find("budget "+b.Name, b.Namespace, b.Spec.Selector.MatchLabels)
	}
	for _, s := range m.statefulSets {
		if got := find("stateful set "+s.Name, s.Namespace, s.Spec.Selector.MatchLabels); len(got) != 1 || got[0].name != s.Name {
			t.Errorf("stateful set %s selects %v", s.Name, got)
		}
		if !slices.ContainsFunc(m.services, func(v *corev1.Service) bool { return v.Name == s.Spec.ServiceName && v.Namespace == s.Namespace }) {
			t.Errorf("stateful set %s has no service %s", s.Name, s.Spec.ServiceName)
		}
		for _, c := range s.Spec.Template.Spec.TopologySpreadConstraints {
			find("spread of "+s.Name, s.Namespace, c.LabelSelector.MatchLabels)
		}
	}
	for _, n := range m.networkPolicies {
		if len(n.Spec.PodSelector.MatchLabels) > 0 {
			find("network policy "+n.Name, n.Namespace, n.Spec.PodSelector.MatchLabels)
		}
		for _, peer := range peersOf(n) {
			if peer.IPBlock != nil || peer.NamespaceSelector != nil && peer.NamespaceSelector.MatchLabels[nameLabel] == "kube-system" {
				continue
			}
			namespace := n.Namespace
			if peer.NamespaceSelector != nil {
				namespace = peer.NamespaceSelector.MatchLabels[nameLabel]
			}
			find("a rule of the network policy "+n.Name, namespace, peer.PodSelector.MatchLabels)
		}
	}
}

// nameLabel is the label that Kubernetes gives each namespace.
const nameLabel = "kubernetes.io/metadata.name"

func peersOf(n *networkingv1.NetworkPolicy) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for _, rule := range n.Spec.Ingress {
		peers = append(peers, rule.From...)
	}
	for _, rule := range n.Spec.Egress {
		peers = append(peers, rule.To...)
	}
	return peers
}

func (m *manifests) selectPods(namespace string, want map[string]string) []pod {
	var found []pod
	for _, p := range m.pods {
		if p.namespace == namespace && labels.SelectorFromSet(want).Matches(labels.Set(p.Labels)) {
			found = append(found, p)
		}
	}
	return found
}

// TestPods checks what every pod has, and what those that make sandboxes have besides.
func TestPods(t *testing.T) {
	m := readAll(t)
	for _, p := range m.pods {
		s := p.Spec
		if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken || s.EnableServiceLinks == nil || *s.EnableServiceLinks {
			t.Errorf("%s has a token of its service account, or variables of services", p)
		}
		for _, c := range s.Containers {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				if _, ok := c.Resources.Requests[name]; !ok {
					t.Errorf("%s requests no %s", p, name)
				}
			}
			if !c.Resources.Limits.Memory().Equal(*c.Resources.Requests.Memory()) && isWorker(p) || c.Resources.Limits.StorageEphemeral().IsZero() {
				t.Errorf("%s: limits %v", p, c.Resources.Limits)
			}
			if _, tag, ok := strings.Cut(c.Image, ":"); !ok || tag == "latest" {
				t.Errorf("%s: image %s is not pinned", p, c.Image)
			}
		}
		if isWorker(p) && (s.TerminationGracePeriodSeconds == nil || *s.TerminationGracePeriodSeconds < 60) {
			t.Errorf("%s can't return its trials", p)
		}
		checkNetwork(t, m, p)
	}
	for _, j := range m.jobs {
		if j.Spec.CompletionMode == nil {
			continue
		}
		checkShards(t, m, j)
	}
}

// checkNetwork checks that nothing is allowed to a pod but by name, and no rule has the address of
// a cloud's metadata.
func checkNetwork(t *testing.T, m *manifests, p pod) {
	t.Helper()
	both := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	denied := slices.ContainsFunc(m.networkPolicies, func(n *networkingv1.NetworkPolicy) bool {
		return n.Namespace == p.namespace && len(n.Spec.PodSelector.MatchLabels) == 0 && slices.Equal(n.Spec.PolicyTypes, both) && len(peersOf(n)) == 0
	})
	if !denied {
		t.Errorf("%s: the network is not denied by default", p)
	}
	for _, n := range m.networkPolicies {
		for _, peer := range peersOf(n) {
			if b := peer.IPBlock; b != nil && b.CIDR == "0.0.0.0/0" && !slices.Contains(b.Except, "169.254.0.0/16") || b != nil && b.CIDR == "::/0" && !slices.Contains(b.Except, "fc00::/7") {
				t.Errorf("network policy %s/%s allows the metadata of clouds", n.Namespace, n.Name)
			}
		}
	}
}

// checkShards checks that the counts of an Indexed Job agree with each other and with the merge.
func checkShards(t *testing.T, m *manifests, j *batchv1.Job) {
	t.Helper()
	count := fmt.Sprint(*j.Spec.Completions)
	for _, e := range j.Spec.Template.Spec.Containers[0].Env {
		if e.Name == "JOB_COMPLETIONS" && e.Value != count {
			t.Errorf("JOB_COMPLETIONS is %s, and completions %s", e.Value, count)
		}
	}
	var parts int
	for _, p := range m.pods {
		if p.name == "merge" {
			for _, arg := range p.Spec.Containers[0].Args {
				if strings.HasPrefix(arg, "/results/shard-") {
					if arg != fmt.Sprintf("/results/shard-%d", parts) {
						t.Errorf("the merge has %s at place %d", arg, parts)
					}
					parts++
				}
			}
		}
	}
	if fmt.Sprint(parts) != count {
		t.Errorf("%d parts are merged, of %s", parts, count)
	}
}
