package docker

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/safeurl"
)

type endpoint struct {
	host string // in DOCKER_HOST's form: unix:///var/run/docker.sock
	tls  *tls.Config
	from string // where it was configured, for messages
}

func (e endpoint) wrapError(err error) error {
	return fmt.Errorf("engine at %s (from %s): %w", e.host, e.from, err)
}

func (e endpoint) notAddress() error {
	return fmt.Errorf("%w: engine address %q (from %s) is not like unix:///var/run/docker.sock", sandbox.ErrInvalid, e.host, e.from)
}

// isLocal reports whether the engine may share this machine's file system. The
// guest proves whether it does.
func (e endpoint) isLocal() bool {
	return strings.HasPrefix(e.host, "unix://")
}

// resolveEndpoint finds the engine like the docker command: the configured one,
// DOCKER_HOST, DOCKER_CONTEXT, the current context in its configuration, the
// default socket.
func resolveEndpoint(host string, getenv func(string) string) (endpoint, error) {
	if host != "" {
		return fromHost(host, "the configuration", getenv)
	}
	if host := getenv("DOCKER_HOST"); host != "" {
		return fromHost(host, "DOCKER_HOST", getenv)
	}
	dir := getenv("DOCKER_CONFIG")
	if dir == "" {
		if home := getenv("HOME"); home != "" {
			dir = filepath.Join(home, ".docker")
		}
	}
	name := getenv("DOCKER_CONTEXT")
	if name == "" && dir != "" {
		var err error
		if name, err = currentContext(dir); err != nil {
			return endpoint{}, err
		}
	}
	if name == "" || name == "default" {
		return fromHost(defaultHost, "the default", getenv)
	}
	if dir == "" {
		return endpoint{}, fmt.Errorf("%w: docker context %q (from DOCKER_CONTEXT): neither DOCKER_CONFIG nor HOME says where contexts are", sandbox.ErrInvalid, name)
	}
	return fromContext(dir, name)
}

func fromHost(host, from string, getenv func(string) string) (endpoint, error) {
	e := endpoint{host: safeurl.String(host), from: from} // engines know no users
	if err := checkScheme(e); err != nil {
		return endpoint{}, err
	}
	if _, err := client.ParseHostURL(host); err != nil { // whose error may contain credentials
		return endpoint{}, e.notAddress()
	}
	dir := getenv("DOCKER_CERT_PATH")
	if dir == "" || !strings.HasPrefix(host, "tcp://") {
		return e, nil
	}
	var err error
	e.tls, err = tlsconfig.Client(tlsconfig.Options{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
		InsecureSkipVerify: getenv("DOCKER_TLS_VERIFY") == "",
	})
	if err != nil {
		return endpoint{}, fmt.Errorf("%w: read certificates in DOCKER_CERT_PATH: %w", sandbox.ErrUnavailable, err)
	}
	return e, nil
}

func checkScheme(e endpoint) error {
	scheme, rest, ok := strings.Cut(e.host, "://")
	switch {
	case !ok || rest == "":
		return e.notAddress()
	case scheme == "unix" || scheme == "tcp":
		return nil
	}
	return fmt.Errorf("%w: engine address %q (from %s): only unix and tcp: use an engine on this machine, which can mount the workspace",
		sandbox.ErrUnsupported, e.host, e.from)
}

func currentContext(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: read docker's configuration: %w", sandbox.ErrUnavailable, err)
	}
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return "", fmt.Errorf("%w: read %s: %w", sandbox.ErrUnavailable, filepath.Join(dir, "config.json"), err)
	}
	return config.CurrentContext, nil
}

// fromContext reads a context from the docker command's store. Its directories
// are named by the SHA-256 of the contexts' names.
func fromContext(dir, name string) (endpoint, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	data, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return endpoint{}, fmt.Errorf("%w: docker context %q: see `docker context ls`", sandbox.ErrNotFound, name)
	}
	if err != nil {
		return endpoint{}, fmt.Errorf("%w: read docker context %q: %w", sandbox.ErrUnavailable, name, err)
	}
	var meta struct {
		Endpoints map[string]struct {
			Host          string `json:"Host"`
			SkipTLSVerify bool   `json:"SkipTLSVerify"`
		} `json:"Endpoints"`
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return endpoint{}, fmt.Errorf("%w: read docker context %q: %w", sandbox.ErrUnavailable, name, err)
	}
	docker := meta.Endpoints["docker"]
	e := endpoint{host: safeurl.String(docker.Host), from: fmt.Sprintf("docker context %q", name)}
	if err := checkScheme(e); err != nil {
		return endpoint{}, err
	}
	keys := filepath.Join(dir, "contexts", "tls", id, "docker")
	if _, err := os.Stat(keys); err != nil {
		return e, nil
	}
	options := tlsconfig.Options{InsecureSkipVerify: docker.SkipTLSVerify}
	for file, field := range map[string]*string{"ca.pem": &options.CAFile, "cert.pem": &options.CertFile, "key.pem": &options.KeyFile} {
		path := filepath.Join(keys, file)
		if _, err := os.Stat(path); err == nil {
			*field = path
		}
	}
	if e.tls, err = tlsconfig.Client(options); err != nil {
		return endpoint{}, fmt.Errorf("%w: read keys of docker context %q: %w", sandbox.ErrUnavailable, name, err)
	}
	return e, nil
}

const defaultHost = "unix:///var/run/docker.sock"
