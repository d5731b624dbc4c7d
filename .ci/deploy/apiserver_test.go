//go:build apiserver

package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestAPIServer applies the manifests to a Kubernetes API server, which decodes them strictly and
// admits the pods of their templates by Pod Security.
func TestAPIServer(t *testing.T) {
	c := startAPIServer(t)
	m := readManifests(t, "kubernetes/namespace.yaml", "kubernetes/*.yaml", "shards/*.yaml", "view.yaml")
	for _, d := range readManifests(t, ciManifest).documents { // it names no namespace
		if err := m.decodeDocument(bytes.Replace(d.text, []byte("\nmetadata:\n"), []byte("\nmetadata:\n  namespace: caisson-batch\n"), 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range m.documents {
		broken := bytes.Replace(d.text, []byte("\nmetadata:\n"), []byte("\nmetadata:\n  nam: x\n"), 1)
		if status, message, _ := c.apply(t, d, broken); status < 400 || !strings.Contains(message, "nam") {
			t.Errorf("%s %s with an unknown field: %d %s", d.Kind, d.Name, status, message)
		}
		status, message, warnings := c.apply(t, d, d.text)
		if status != http.StatusOK && status != http.StatusCreated {
			t.Errorf("%s %s: %d %s", d.Kind, d.Name, status, message)
		}
		t.Logf("applied %s %s/%s, warnings: %q", d.Kind, d.Namespace, d.Name, warnings)
	}
	for _, p := range m.pods {
		status, message, warnings := c.createPod(t, p)
		if status != http.StatusCreated || len(warnings) > 0 {
			t.Errorf("%s: %d %s, warnings %q", p, status, message, warnings)
		}
		unconfine(p.PodTemplateSpec) // the control
		if status, message, _ := c.createPod(t, p); status != http.StatusForbidden || !strings.Contains(message, "violates PodSecurity") {
			t.Errorf("%s, unconfined: %d %s", p, status, message)
		}
	}
	for _, d := range m.documents {
		if status, message, _ := c.do(t, http.MethodDelete, c.pathOf(d), "application/json", nil); status != http.StatusOK && status != http.StatusAccepted {
			t.Errorf("delete %s %s: %d %s", d.Kind, d.Name, status, message)
		}
	}
}

// resources are the names that kinds have in paths.
var resources = map[string]string{
	"Namespace": "namespaces", "ConfigMap": "configmaps", "Service": "services", "PersistentVolumeClaim": "persistentvolumeclaims", "Pod": "pods",
	"NetworkPolicy": "networkpolicies", "PodDisruptionBudget": "poddisruptionbudgets", "StatefulSet": "statefulsets", "Job": "jobs",
}

// client sends requests to an API server.
type client struct {
	url, token string
	http       *http.Client
}

func (c *client) pathOf(d document) string {
	path := "/apis/" + d.APIVersion
	if d.APIVersion == "v1" {
		path = "/api/v1"
	}
	if d.Namespace != "" {
		path += "/namespaces/" + d.Namespace
	}
	return path + "/" + resources[d.Kind] + "/" + d.Name
}

// apply sends a text as server-side apply of a document.
func (c *client) apply(t *testing.T, d document, text []byte) (status int, message string, warnings []string) {
	t.Helper()
	return c.do(t, http.MethodPatch, c.pathOf(d)+"?fieldManager=test&fieldValidation=Strict", "application/apply-patch+yaml", text)
}

// createPod creates a pod of the template.
func (c *client) createPod(t *testing.T, p pod) (status int, message string, warnings []string) {
	t.Helper()
	object := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: p.name + "-", Namespace: p.namespace, Labels: p.Labels, Annotations: p.Annotations}, Spec: p.Spec,
	}
	for _, v := range p.Spec.Containers[0].VolumeMounts { // that of a claim is the controller's
		if !slices.ContainsFunc(object.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }) {
			object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{Name: v.Name})
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return c.do(t, http.MethodPost, "/api/v1/namespaces/"+p.namespace+"/pods?fieldValidation=Strict", "application/json", text)
}

// do sends a request. The message is the body of the answer, or that of its status.
func (c *client) do(t *testing.T, method, path, kind string, body []byte) (status int, message string, warnings []string) {
	t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, c.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", kind)
	answer, err := c.http.Do(request)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var s metav1.Status
	if yaml.Unmarshal(text, &s) == nil && s.Message != "" {
		text = []byte(s.Message)
	}
	return answer.StatusCode, string(text), answer.Header.Values("Warning")
}

// startAPIServer builds and starts an etcd and an API server on the loopback interface. They end
// with the test.
func startAPIServer(t *testing.T) *client {
	t.Helper()
	dir := t.TempDir()
	for name, program := range map[string]string{"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"} {
		build := exec.Command("go", "build", "-p", "1", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		start := time.Now()
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
		t.Logf("built %s in %s", name, time.Since(start).Round(time.Second))
	}
	etcd, peer, port := freePort(t), freePort(t), freePort(t)
	start(t, filepath.Join(dir, "etcd"), "--data-dir="+filepath.Join(dir, "data"), "--listen-client-urls=http://"+etcd, "--advertise-client-urls=http://"+etcd,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=default=http://"+peer)
	key, token := filepath.Join(dir, "key.pem"), rand.Text()
	writeKey(t, key)
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+`,test,1,"system:masters"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, number, err := net.SplitHostPort(port)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing makes the service accounts that pods would have.
	start(t, filepath.Join(dir, "kube-apiserver"), "--etcd-servers=http://"+etcd, "--cert-dir="+dir, "--bind-address=127.0.0.1", "--secure-port="+number,
		"--service-account-issuer=https://localhost", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file="+tokens, "--disable-admission-plugins=ServiceAccount")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // a certificate that the server made itself, on loopback
	t.Cleanup(transport.CloseIdleConnections)
	c := &client{"https://" + port, token, &http.Client{Transport: transport, Timeout: time.Minute}}
	for began := time.Now(); ; time.Sleep(time.Second) {
		status, message, _ := c.do(t, http.MethodGet, "/readyz", "", nil)
		if status == http.StatusOK {
			return c
		}
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("the API server is not ready: %d %s", status, message)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func writeKey(t *testing.T, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start starts a program, which is killed at the end of the test.
func start(t *testing.T, program string, args ...string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), filepath.Base(program)+".log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = file.Close()
		if text, err := os.ReadFile(log); t.Failed() && err == nil {
			t.Logf("%s:\n%s", fmt.Sprint(filepath.Base(program)), text[max(0, len(text)-8<<10):])
		}
	})
}
