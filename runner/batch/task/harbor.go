package task

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/goccy/go-yaml"

	"github.com/caisson-run/caisson/images"
)

// maxTaskFile bounds task.toml and instructions, in bytes.
const maxTaskFile = 4 << 20

// Harbor's defaults.
const (
	defaultVerifierTime = 600 * time.Second
	defaultBuildTime    = 600 * time.Second
	defaultCollectTime  = 60 * time.Second
	oldAgentTime        = 600 * time.Second // schema 1.0
	oldMemoryBytes      = 2048 << 20        // and 1 CPU, schema 1.0 to 1.2
	oldStorageBytes     = 10240 << 20
)

type harborReader struct {
	dir   string
	minor int // of schema version 1.minor
	o     Options
	task  *Task
}

// loadHarbor reads a Harbor task directory. Its faults become reasons in Unsupported.
func loadHarbor(dir string, o Options) Task {
	name := filepath.Base(dir)
	t := Task{ID: strings.ToValidUTF8(name, "\ufffd"), Source: dir, Strategy: Mean}
	r := &harborReader{dir: dir, o: o, task: &t}
	if t.ID != name { // JSON would change it, so results would be another task's
		r.addUnsupported("the name of the directory is not UTF-8")
	}
	if err := r.readTask(); err != nil {
		r.addUnsupported("invalid: %v", err)
	}
	return t
}

func (r *harborReader) addUnsupported(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.task.Unsupported, text) {
		r.task.Unsupported = append(r.task.Unsupported, text)
	}
}

func (r *harborReader) readTask() (err error) {
	if r.task.Checksum, err = HashTree(r.dir); err != nil {
		return err
	}
	if err := r.checkDirectories(); err != nil {
		return err
	}
	if !isFile(filepath.Join(r.dir, "task.toml")) {
		r.addUnsupported("the directory has the older form of terminal-bench (task.yaml): convert it with harbor tasks migrate")
		return nil
	}
	text, err := r.readBounded(filepath.Join(r.dir, "task.toml"))
	if err != nil {
		return err
	}
	var f harborFile
	if _, err := toml.NewDecoder(bytes.NewReader(text)).Decode(&f); err != nil {
		if parse, ok := errors.AsType[toml.ParseError](err); ok {
			return fmt.Errorf("task.toml:%d: %s", parse.Position.Line, parse.Message)
		}
		return fmt.Errorf("task.toml: %w", err)
	}
	if err := r.readVersion(f); err != nil {
		return err
	}
	return r.convertFile(f)
}

// readVersion sets the minor version, which decides about defaults.
func (r *harborReader) readVersion(f harborFile) error {
	version := cmp.Or(f.SchemaVersion, f.Version, "1.0")
	major, minor, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if major != "1" || err != nil || n < 0 {
		return fmt.Errorf("schema version %q: want 1.0 to 1.4", version)
	}
	if n > 4 {
		r.addUnsupported("schema version %s is newer than 1.4", version)
	}
	r.minor = n
	return nil
}

func (r *harborReader) convertFile(f harborFile) (err error) {
	t := r.task
	t.Metadata = f.Metadata
	if t.Environment, err = r.readEnvironment(f.Environment, filepath.Join(r.dir, "environment"), nil); err != nil {
		return err
	}
	if len(f.Verifier.Continuous) > 0 {
		r.addUnsupported("a continuous verifier")
	}
	if t.SolutionEnv, err = r.o.expandVariables(f.Solution.Env); err != nil {
		r.refuseVariables(err)
	}
	if dir := filepath.Join(r.dir, "solution"); isDir(dir) {
		t.Solution = dir
	}
	t.Strategy = cmp.Or(f.Strategy, Mean)
	if t.Strategy != Mean && t.Strategy != Final {
		return fmt.Errorf("multi_step_reward_strategy %q: want mean or final", f.Strategy)
	}
	if len(f.Steps) == 0 {
		step, err := r.readStep(f, harborStep{Agent: f.Agent, Verifier: f.Verifier}, r.dir)
		t.Steps = []Step{step}
		return err
	}
	t.MultiStep = true
	return r.readSteps(f)
}

func (r *harborReader) readSteps(f harborFile) error {
	seen := map[string]bool{}
	for _, s := range f.Steps {
		if s.Name == "" || s.Name != filepath.Base(s.Name) || s.Name == "." || s.Name == ".." || seen[s.Name] {
			return fmt.Errorf("step %q: want the name of a directory in steps, once", s.Name)
		}
		seen[s.Name] = true
		dir := filepath.Join(r.dir, "steps", s.Name)
		s.inheritFrom(f)
		step, err := r.readStep(f, s, dir)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
		step.Name = s.Name
		if files := filepath.Join(dir, "workdir"); isDir(files) {
			step.Files = files
		}
		if own := filepath.Join(dir, "solution"); isDir(own) {
			step.Solution = own
		}
		if step.MinReward, err = minReward(s.MinReward); err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
		if first := r.task.Steps; len(first) > 0 && !reflect.DeepEqual(first[0].Agent.Network, step.Agent.Network) {
			r.addUnsupported("steps whose agents have different networks")
		}
		r.task.Steps = append(r.task.Steps, step)
	}
	return nil
}

func (r *harborReader) readStep(f harborFile, s harborStep, dir string) (Step, error) {
	instruction, err := r.readBounded(filepath.Join(dir, "instruction.md"))
	if errors.Is(err, os.ErrNotExist) {
		return Step{}, errors.New("instruction.md is missing")
	}
	if err != nil {
		return Step{}, err
	}
	step := Step{Instruction: string(instruction)}
	if step.HealthCheck, err = parseHealthCheck(s.Healthcheck); err != nil {
		return step, err
	}
	if step.Agent, err = r.readAgent(s.Agent); err != nil {
		return step, err
	}
	if step.Verifier, err = r.readVerifier(s.Verifier, dir); err != nil {
		return step, err
	}
	step.Artifacts, err = r.readArtifacts(append(slices.Clone(f.Artifacts), s.Artifacts...))
	return step, err
}

func (r *harborReader) readAgent(a harborAgent) (Agent, error) {
	out := Agent{Network: r.task.Environment.Network}
	r.checkUser("agent", a.User)
	var err error
	if out.Time, err = parseSeconds("agent.timeout_sec", a.TimeoutSec, 0); err != nil {
		return out, err
	}
	if a.TimeoutSec == nil && r.minor == 0 {
		out.Time = oldAgentTime
	}
	if a.NetworkMode != "" {
		out.Network, err = parseNetwork("agent", a.NetworkMode, a.AllowedHosts)
	}
	return out, err
}

func (r *harborReader) readVerifier(v harborVerifier, dir string) (Verifier, error) {
	out := Verifier{Network: r.task.Environment.Network, Environment: r.task.Environment}
	r.checkUser("verifier", v.User)
	var err error
	if out.Time, err = parseSeconds("verifier.timeout_sec", v.TimeoutSec, defaultVerifierTime); err != nil {
		return out, err
	}
	if out.Env, err = r.o.expandVariables(v.Env); err != nil {
		r.refuseVariables(err)
	}
	switch v.EnvironmentMode {
	case "":
		out.Separate = v.Environment != nil
	case "shared":
		if v.Environment != nil {
			return out, errors.New("verifier.environment_mode is shared, and there is a verifier.environment")
		}
	case "separate":
		out.Separate = true
	default:
		return out, fmt.Errorf("verifier.environment_mode %q: want shared or separate", v.EnvironmentMode)
	}
	if err := r.readTests(&out, dir); err != nil {
		return out, err
	}
	if v.Environment != nil {
		if out.Environment, err = r.readEnvironment(*v.Environment, out.Tests, &r.task.Environment); err != nil {
			return out, fmt.Errorf("verifier: %w", err)
		}
		out.Network = out.Environment.Network
	} else if out.Separate && isFile(filepath.Join(out.Tests, "Dockerfile")) {
		out.Environment.Image = "build:" + out.Tests
	}
	if v.NetworkMode != "" {
		if out.Network, err = parseNetwork("verifier", v.NetworkMode, v.AllowedHosts); err != nil {
			return out, err
		}
	}
	for _, c := range v.Collect {
		r.checkUser("verifier.collect", c.User)
		r.checkService(c.Service)
		limit, err := parseSeconds("collect.timeout_sec", c.TimeoutSec, defaultCollectTime)
		if err != nil {
			return out, err
		}
		out.Collect = append(out.Collect, Collect{Command: c.Command, Time: limit})
	}
	return out, nil
}

// readTests sets the step's tests, or else the task's.
func (r *harborReader) readTests(v *Verifier, dir string) error {
	for _, d := range []string{dir, r.dir} {
		v.Tests = filepath.Join(d, "tests")
		if isFile(filepath.Join(v.Tests, "test.sh")) {
			return nil
		}
	}
	if isFile(filepath.Join(v.Tests, "test.bat")) {
		r.addUnsupported("tests for Windows")
		return nil
	}
	return errors.New("tests/test.sh is missing")
}

// readEnvironment converts [environment], whose Dockerfile is in dir. Without that and
// docker_image, the image is def's, unless def is nil.
func (r *harborReader) readEnvironment(e harborEnvironment, dir string, def *Environment) (Environment, error) {
	out := Environment{Root: true, Workdir: e.Workdir}
	var err error
	switch {
	case e.DockerImage != "":
		ref, err := images.ParseReference(e.DockerImage)
		if err != nil || ref.Scheme != images.SchemeName { // not a directory of this machine
			return out, fmt.Errorf("docker_image %q: want the name of an image", e.DockerImage)
		}
		out.Image = e.DockerImage
	case isFile(filepath.Join(dir, "Dockerfile")):
		out.Image = "build:" + dir
	case def != nil:
		out.Image, out.Workdir = def.Image, cmp.Or(out.Workdir, def.Workdir)
	default:
		r.addUnsupported("neither a Dockerfile nor docker_image")
	}
	if out.BuildTime, err = parseSeconds("build_timeout_sec", e.BuildTimeoutSec, defaultBuildTime); err != nil {
		return out, err
	}
	if err := r.readResources(e, &out); err != nil {
		return out, err
	}
	r.refuseHardware(e)
	if err := r.refuseCompose(dir); err != nil {
		return out, err
	}
	if out.Env, err = r.o.expandVariables(e.Env); err != nil {
		r.refuseVariables(err)
	}
	if out.HealthCheck, err = parseHealthCheck(e.Healthcheck); err != nil {
		return out, err
	}
	mode := e.NetworkMode
	if mode == "" && e.AllowInternet != nil && !*e.AllowInternet {
		mode = string(NoNetwork)
	}
	out.Network, err = parseNetwork("environment", cmp.Or(mode, string(Public)), e.AllowedHosts)
	out.SkillsDir = e.SkillsDir
	if out.SkillsDir != "" && (!path.IsAbs(out.SkillsDir) || path.Clean(out.SkillsDir) != out.SkillsDir || out.SkillsDir == "/") {
		return out, fmt.Errorf("environment.skills_dir %q: want an absolute path in its shortest form", out.SkillsDir)
	}
	if out.Workdir != "" && (!path.IsAbs(out.Workdir) || path.Clean(out.Workdir) != out.Workdir) {
		return out, fmt.Errorf("environment.workdir %q: want an absolute path in its shortest form", out.Workdir)
	}
	return out, err
}

func (r *harborReader) readResources(e harborEnvironment, out *Environment) error {
	if r.minor < 3 {
		out.MilliCPUs = 1000
		out.MemoryBytes = oldMemoryBytes
		out.StorageBytes = oldStorageBytes
	}
	for _, s := range []struct {
		key  string
		text string
		mega *int64
		to   *int64
	}{{"memory", e.Memory, e.MemoryMB, &out.MemoryBytes}, {"storage", e.Storage, e.StorageMB, &out.StorageBytes}} {
		if s.text != "" {
			n, err := parseSize(s.text)
			if err != nil {
				return fmt.Errorf("environment.%s: %w", s.key, err)
			}
			*s.to = n
		}
		if s.mega != nil {
			if *s.mega <= 0 || *s.mega > 1<<30 {
				return fmt.Errorf("environment.%s_mb is %d", s.key, *s.mega)
			}
			*s.to = *s.mega << 20
		}
	}
	if e.CPUs != nil {
		if !(*e.CPUs > 0 && *e.CPUs < 1e6) {
			return fmt.Errorf("environment.cpus is %v", *e.CPUs)
		}
		out.MilliCPUs = int64(*e.CPUs * 1000)
	}
	return nil
}

// refuseHardware lists what no sandbox has.
func (r *harborReader) refuseHardware(e harborEnvironment) {
	if e.OS != "" && e.OS != "linux" {
		r.addUnsupported("the operating system %s", e.OS)
	}
	if e.GPUs > 0 {
		r.addUnsupported("GPUs (%d)", e.GPUs)
	}
	if len(e.TPU) > 0 {
		r.addUnsupported("a TPU")
	}
	if len(e.MCPServers) > 0 {
		r.addUnsupported("MCP servers of the task")
	}
}

// refuseVariables adds the error for variables without values.
func (r *harborReader) refuseVariables(err error) {
	r.addUnsupported("%v", err)
	if missing, ok := errors.AsType[*variableError](err); ok {
		r.task.Variables = append(r.task.Variables, missing.name)
	}
}

// composeFile names a file of services. Harbor reads no other: files that Docker would
// also find are data of tasks about Docker.
const composeFile = "docker-compose.yaml"

// composeKeys are keys of the service main that the sandbox replaces: with its image,
// its waiting command, its log mounts and its limits.
var composeKeys = []string{"build", "image", "command", "container_name", "volumes", "environment", "deploy", "pull_policy"}

// refuseCompose lists what a file of services requires besides the agent's service.
func (r *harborReader) refuseCompose(dir string) error {
	text, err := r.readBounded(filepath.Join(dir, composeFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var f struct {
		Services map[string]map[string]any `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("%s: %w", composeFile, err)
	}
	for service, keys := range f.Services {
		if service != "main" && service != "client" {
			r.addUnsupported("several services (%s)", composeFile)
		}
		for key := range keys {
			if !slices.Contains(composeKeys, key) {
				r.addUnsupported("%s: %s of service %s", composeFile, key, service)
			}
		}
	}
	slices.Sort(r.task.Unsupported)
	return nil
}

// checkUser lists users other than root, because all commands of Harbor tasks run as
// root.
func (r *harborReader) checkUser(of string, user any) {
	switch u := user.(type) {
	case nil:
	case string:
		if u != "" && u != "root" && u != "0" {
			r.addUnsupported("%s.user %q", of, u)
		}
	case int64:
		if u != 0 {
			r.addUnsupported("%s.user %d", of, u)
		}
	default:
		r.addUnsupported("%s.user %v", of, u)
	}
}

func (r *harborReader) checkService(name string) {
	if name != "" && name != "main" {
		r.addUnsupported("service %s", name)
	}
}

// checkDirectories returns an error if a task's directory is a symlink, which could
// lead to any directory of this machine.
func (r *harborReader) checkDirectories() error {
	for _, pattern := range []string{"environment", "tests", "solution", "steps", "steps/*", "steps/*/tests", "steps/*/solution", "steps/*/workdir"} {
		names, err := fs.Glob(os.DirFS(r.dir), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := os.Lstat(filepath.Join(r.dir, name))
			if err != nil {
				return err
			}
			if info.Mode().Type() == fs.ModeSymlink {
				return fmt.Errorf("%s is a symlink: want a directory of the task", name)
			}
		}
	}
	return nil
}

// readBounded reads a task's file of at most maxTaskFile bytes. A symlink that leads
// out of the task's directory is an error, because the file goes to the model.
func (r *harborReader) readBounded(path string) ([]byte, error) {
	name, err := filepath.Rel(r.dir, path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path) // opening a pipe would block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	f, err := os.OpenInRoot(r.dir, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, maxTaskFile+1))
	if err == nil && len(text) > maxTaskFile {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxTaskFile)
	}
	return text, err
}
