package task

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// harborFile is task.toml. Like Harbor, it ignores other keys.
type harborFile struct {
	SchemaVersion string            `toml:"schema_version"`
	Version       string            `toml:"version"` // schema 1.0
	Strategy      Strategy          `toml:"multi_step_reward_strategy"`
	Artifacts     []any             `toml:"artifacts"`
	Metadata      map[string]any    `toml:"metadata"`
	Agent         harborAgent       `toml:"agent"`
	Verifier      harborVerifier    `toml:"verifier"`
	Environment   harborEnvironment `toml:"environment"`
	Solution      struct {
		Env map[string]string `toml:"env"`
	} `toml:"solution"`
	Steps []harborStep `toml:"steps"`
}

type harborAgent struct {
	TimeoutSec   *float64 `toml:"timeout_sec"`
	User         any      `toml:"user"`
	NetworkMode  string   `toml:"network_mode"`
	AllowedHosts []string `toml:"allowed_hosts"`
}

type harborVerifier struct {
	TimeoutSec      *float64           `toml:"timeout_sec"`
	Env             map[string]string  `toml:"env"`
	User            any                `toml:"user"`
	NetworkMode     string             `toml:"network_mode"`
	AllowedHosts    []string           `toml:"allowed_hosts"`
	EnvironmentMode string             `toml:"environment_mode"`
	Environment     *harborEnvironment `toml:"environment"`
	Collect         []struct {
		Command    string   `toml:"command"`
		Service    string   `toml:"service"`
		TimeoutSec *float64 `toml:"timeout_sec"`
		User       any      `toml:"user"`
	} `toml:"collect"`
	Continuous map[string]any `toml:"continuous"`
}

type harborEnvironment struct {
	BuildTimeoutSec *float64           `toml:"build_timeout_sec"`
	DockerImage     string             `toml:"docker_image"`
	OS              string             `toml:"os"`
	CPUs            *float64           `toml:"cpus"`
	MemoryMB        *int64             `toml:"memory_mb"`
	StorageMB       *int64             `toml:"storage_mb"`
	Memory          string             `toml:"memory"`
	Storage         string             `toml:"storage"`
	GPUs            int64              `toml:"gpus"`
	TPU             map[string]any     `toml:"tpu"`
	NetworkMode     string             `toml:"network_mode"`
	AllowedHosts    []string           `toml:"allowed_hosts"`
	AllowInternet   *bool              `toml:"allow_internet"`
	Env             map[string]string  `toml:"env"`
	Workdir         string             `toml:"workdir"`
	SkillsDir       string             `toml:"skills_dir"`
	MCPServers      []map[string]any   `toml:"mcp_servers"`
	Healthcheck     *harborHealthcheck `toml:"healthcheck"`
}

type harborHealthcheck struct {
	Command          string   `toml:"command"`
	IntervalSec      *float64 `toml:"interval_sec"`
	TimeoutSec       *float64 `toml:"timeout_sec"`
	StartPeriodSec   *float64 `toml:"start_period_sec"`
	StartIntervalSec *float64 `toml:"start_interval_sec"`
	Retries          *int     `toml:"retries"`
}

type harborStep struct {
	Name        string             `toml:"name"`
	MinReward   any                `toml:"min_reward"`
	Agent       harborAgent        `toml:"agent"`
	Verifier    harborVerifier     `toml:"verifier"`
	Healthcheck *harborHealthcheck `toml:"healthcheck"`
	Artifacts   []any              `toml:"artifacts"`
}

// inheritFrom takes what the step leaves out from the task.
func (s *harborStep) inheritFrom(f harborFile) {
	s.Agent.TimeoutSec = cmp.Or(s.Agent.TimeoutSec, f.Agent.TimeoutSec)
	s.Agent.User = cmp.Or(s.Agent.User, f.Agent.User)
	if s.Agent.NetworkMode == "" {
		s.Agent.NetworkMode, s.Agent.AllowedHosts = f.Agent.NetworkMode, f.Agent.AllowedHosts
	}
	v, from := &s.Verifier, f.Verifier
	v.TimeoutSec = cmp.Or(v.TimeoutSec, from.TimeoutSec)
	v.User = cmp.Or(v.User, from.User)
	if v.Env == nil {
		v.Env = from.Env
	}
	if v.NetworkMode == "" {
		v.NetworkMode, v.AllowedHosts = from.NetworkMode, from.AllowedHosts
	}
	if v.EnvironmentMode == "" && v.Environment == nil {
		v.EnvironmentMode, v.Environment = from.EnvironmentMode, from.Environment
	}
	if v.Collect == nil {
		v.Collect = from.Collect
	}
}

// parseSeconds converts a number of seconds; nil means def.
func parseSeconds(key string, n *float64, def time.Duration) (time.Duration, error) {
	if n == nil {
		return def, nil
	}
	if !(*n >= 0 && *n <= 1e9) { // or NaN
		return 0, fmt.Errorf("%s is %v: want a number of seconds", key, *n)
	}
	return time.Duration(*n * float64(time.Second)), nil
}

func parseHealthCheck(h *harborHealthcheck) (*HealthCheck, error) {
	if h == nil {
		return nil, nil
	}
	out := &HealthCheck{Command: h.Command, Retries: 3}
	if h.Command == "" {
		return nil, errors.New("healthcheck.command is missing")
	}
	if h.Retries != nil {
		out.Retries = *h.Retries
	}
	for _, s := range []struct {
		key string
		n   *float64
		def time.Duration
		to  *time.Duration
	}{
		{"interval_sec", h.IntervalSec, 5 * time.Second, &out.Interval},
		{"timeout_sec", h.TimeoutSec, 30 * time.Second, &out.Timeout},
		{"start_period_sec", h.StartPeriodSec, 0, &out.StartPeriod},
		{"start_interval_sec", h.StartIntervalSec, 5 * time.Second, &out.StartInterval},
	} {
		d, err := parseSeconds("healthcheck."+s.key, s.n, s.def)
		if err != nil {
			return nil, err
		}
		*s.to = d
	}
	return out, nil
}

// parseSize parses a size such as 2G, 512M or 512MB.
func parseSize(text string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(text)), "B"), "I")
	factor := int64(1)
	for i, unit := range []string{"K", "M", "G", "T"} {
		if n, ok := strings.CutSuffix(number, unit); ok {
			number, factor = n, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	bytes := n * float64(factor)
	if err != nil || !(bytes >= 1 && bytes < math.MaxInt64/2) {
		return 0, fmt.Errorf("invalid size %q: want a number with K, M or G", text)
	}
	return int64(bytes), nil
}

// parseNetwork converts a mode with its hosts. Names may be reached at any port: at 443
// by TLS that names them, at 80 by requests for them, at others by any bytes. Addresses
// and networks may be reached by any bytes, because TLS doesn't name them.
func parseNetwork(of, mode string, hosts []string) (Network, error) {
	n := Network{Mode: NetworkMode(mode)}
	switch n.Mode {
	case NoNetwork, Public:
		if len(hosts) > 0 {
			return n, fmt.Errorf("%s.allowed_hosts needs network_mode allowlist", of)
		}
		return n, nil
	case AllowList:
	default:
		return n, fmt.Errorf("%s.network_mode %q: want public, no-network or allowlist", of, mode)
	}
	for _, h := range hosts {
		text := "host://" + h
		a, addrErr := netip.ParseAddr(h)
		p, prefixErr := netip.ParsePrefix(h)
		switch isAddr := addrErr == nil || prefixErr == nil; {
		case isAddr && (a.Is4() || p.Addr().Is4()):
			text = "tcp://" + h + ":*"
		case isAddr:
			text = "tcp://[" + h + "]:*"
		case h == "" || strings.ContainsAny(h, ":@/"):
			return n, fmt.Errorf("%s.allowed_hosts: %q: want a host or an address, without a scheme, a port or a path", of, h)
		}
		r, err := rule.ParseEgress(text)
		if err != nil {
			return n, fmt.Errorf("%s.allowed_hosts: %w", of, err)
		}
		n.Rules = append(n.Rules, r)
	}
	return n, nil
}

// minReward converts a bound. A number is for the key reward.
func minReward(v any) (map[string]float64, error) {
	number := func(v any) (float64, bool) {
		switch n := v.(type) {
		case int64:
			return float64(n), true
		case float64:
			return n, !math.IsNaN(n)
		}
		return 0, false
	}
	if v == nil {
		return nil, nil
	}
	if n, ok := number(v); ok {
		return map[string]float64{RewardKey: n}, nil
	}
	table, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("min_reward is %v: want a number, or a table of numbers", v)
	}
	out := map[string]float64{}
	for key, value := range table {
		if out[key], ok = number(value); !ok {
			return nil, fmt.Errorf("min_reward.%s is %v: want a number", key, value)
		}
	}
	return out, nil
}

// RewardKey names the reward that decides whether a trial passed.
const RewardKey = "reward"

func (r *harborReader) readArtifacts(list []any) ([]Artifact, error) {
	var out []Artifact
	for _, v := range list {
		var a Artifact
		switch v := v.(type) {
		case string:
			a.Source = v
		case map[string]any:
			a.Source, _ = v["source"].(string)
			a.Destination, _ = v["destination"].(string)
			if excluded, ok := v["exclude"].([]any); ok {
				for _, e := range excluded {
					pattern, _ := e.(string)
					if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
						return nil, fmt.Errorf("artifacts: exclude %v: want a pattern", e)
					}
					a.Exclude = append(a.Exclude, pattern)
				}
			}
			service, _ := v["service"].(string)
			r.checkService(service)
		}
		if err := a.checkPaths(); err != nil {
			return nil, err
		}
		for _, other := range out {
			if a.overlapsWith(other) {
				return nil, fmt.Errorf("artifacts: %s and %s overlap", other.Source, a.Source)
			}
		}
		out = append(out, a)
	}
	return out, nil
}

func (a Artifact) checkPaths() error {
	hasDots := func(name string) bool { return strings.Contains("/"+name+"/", "/../") }
	dest := a.Name()
	switch {
	case a.Source == "" || hasDots(a.Source) || path.Clean(a.Source) == "/" || path.Clean(a.Source) == ".":
		return fmt.Errorf("artifacts: source %q: want a path that does not lead up", a.Source)
	case path.IsAbs(a.Destination) || hasDots(dest) || dest == "." || dest == "manifest.json":
		return fmt.Errorf("artifacts: destination %q: want a relative path that does not lead up, and not manifest.json", a.Destination)
	}
	return nil
}

// Name returns the artifact's path below the artifacts.
func (a Artifact) Name() string {
	if a.Destination != "" {
		return path.Clean(a.Destination)
	}
	return strings.TrimPrefix(path.Clean(a.Source), "/")
}

// Path returns the clean path of the source in a sandbox with the given working
// directory.
func (a Artifact) Path(workdir string) string {
	if path.IsAbs(a.Source) {
		workdir = ""
	}
	return path.Join(workdir, a.Source)
}

func (a Artifact) overlapsWith(b Artifact) bool {
	within := func(x, y string) bool { return x == y || strings.HasPrefix(x, y+"/") }
	x, y := a.Name(), b.Name()
	return within(x, y) || within(y, x)
}
