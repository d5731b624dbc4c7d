package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// dockerConfig writes a docker configuration with one context.
func dockerConfig(t *testing.T, current, name, host string) string {
	t.Helper()
	dir := t.TempDir()
	if current != "" {
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{},"currentContext":"`+current+`"}`), 0o600))
	}
	sum := sha256.Sum256([]byte(name))
	meta := filepath.Join(dir, "contexts/meta", hex.EncodeToString(sum[:]))
	must(t, os.MkdirAll(meta, 0o755))
	must(t, os.WriteFile(filepath.Join(meta, "meta.json"), []byte(`{"Name":"`+name+`","Metadata":{},"Endpoints":{"docker":{"Host":"`+host+`","SkipTLSVerify":false}}}`), 0o600))
	return dir
}

func TestResolveEndpoint(t *testing.T) {
	config := dockerConfig(t, "mine", "mine", "unix:///ctx.sock")
	broken := t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, "config.json"), []byte("{"), 0o600))
	home := t.TempDir()
	must(t, os.Rename(dockerConfig(t, "mine", "mine", "unix:///home.sock"), filepath.Join(home, ".docker")))
	for _, tt := range []struct {
		name string
		host string
		env  map[string]string
		want string
		from string
		err  error
	}{
		{name: "nothing", want: defaultHost, from: "default"},
		{name: "asked for", host: "unix:///a.sock", env: map[string]string{"DOCKER_HOST": "unix:///b.sock"}, want: "unix:///a.sock"},
		{name: "DOCKER_HOST", env: map[string]string{"DOCKER_HOST": "tcp://h:2375", "DOCKER_CONTEXT": "mine", "DOCKER_CONFIG": config}, want: "tcp://h:2375", from: "DOCKER_HOST"},
		{name: "DOCKER_CONTEXT", env: map[string]string{"DOCKER_CONTEXT": "mine", "DOCKER_CONFIG": config}, want: "unix:///ctx.sock", from: "mine"},
		{name: "DOCKER_CONTEXT default", env: map[string]string{"DOCKER_CONTEXT": "default", "DOCKER_CONFIG": config}, want: defaultHost},
		{name: "current context", env: map[string]string{"DOCKER_CONFIG": config}, want: "unix:///ctx.sock"},
		{name: "in the home directory", env: map[string]string{"HOME": home}, want: "unix:///home.sock"},
		{name: "missing context", env: map[string]string{"DOCKER_CONTEXT": "other", "DOCKER_CONFIG": config}, err: sandbox.ErrNotFound},
		{name: "context with a path in its name", env: map[string]string{"DOCKER_CONTEXT": "../../x", "DOCKER_CONFIG": config}, err: sandbox.ErrNotFound},
		{name: "context and no place for it", env: map[string]string{"DOCKER_CONTEXT": "mine"}, err: sandbox.ErrInvalid},
		{name: "damaged configuration", env: map[string]string{"DOCKER_CONFIG": broken}, err: sandbox.ErrUnavailable},
		{name: "ssh", env: map[string]string{"DOCKER_HOST": "ssh://me@there"}, err: sandbox.ErrUnsupported},
		{name: "no scheme", host: "/var/run/docker.sock", err: sandbox.ErrInvalid},
		{name: "no URL", env: map[string]string{"DOCKER_HOST": "tcp://[::1"}, err: sandbox.ErrInvalid},
		{name: "no address", host: "unix://", err: sandbox.ErrInvalid},
		{name: "missing certificates", env: map[string]string{"DOCKER_HOST": "tcp://h:2376", "DOCKER_CERT_PATH": "/nowhere"}, err: sandbox.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := resolveEndpoint(tt.host, func(name string) string { return tt.env[name] })
			if !errors.Is(err, tt.err) || got.host != tt.want || !strings.Contains(got.from, tt.from) {
				t.Errorf("%q from %q, error %v", got.host, got.from, err)
			}
			if err == nil && got.isLocal() != strings.HasPrefix(tt.want, "unix") {
				t.Errorf("local is %v", got.isLocal())
			}
		})
	}
}
