package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rhysd/actionlint"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	ciExamples = "../../examples/ci"
	// ciManifest is the Job of examples/ci, seen from examples/deploy.
	ciManifest = "../ci/kubernetes.yaml"
)

func readCI(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(ciExamples, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestCI checks each definition of a job, and that a misspelt key of it is found.
func TestCI(t *testing.T) {
	tools := installCITools(t)
	for name, tt := range map[string]struct {
		check func([]byte) error
		keys  []string
	}{
		"github.yml":      {lintExample, []string{"runs-on", "persist-credentials", "restore-keys", "task-file"}},
		"gitlab-ci.yml":   {tools.checkGitLab, []string{"image", "artifacts", "junit"}},
		"circleci.yml":    {tools.checkCircleCI, []string{"docker", "command", "save_cache"}},
		"kubernetes.yaml": {new(manifests).decode, []string{"spec", "command", "secretKeyRef"}},
		"tekton.yaml":     {checkTekton, []string{"params", "script", "secretKeyRef"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := readCI(t, name)
			if err := tt.check(text); err != nil {
				t.Error(err)
			}
			for _, key := range tt.keys {
				broken := bytes.Replace(text, []byte(key+":"), []byte(key+"x:"), 1)
				if bytes.Equal(broken, text) || tt.check(broken) == nil {
					t.Errorf("%sx is accepted", key)
				}
			}
		})
	}
}

// lintWorkflow checks a workflow of this repository with its expressions, and the inputs of actions.
func lintWorkflow(text []byte) error {
	linter, err := actionlint.NewLinter(io.Discard, new(actionlint.LinterOptions))
	if err != nil {
		return err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	project, err := actionlint.NewProject(root)
	if err != nil {
		return err
	}
	found, err := linter.Lint(filepath.Join(root, ".github/workflows/tested.yml"), text, project)
	for _, f := range found {
		err = errors.Join(err, f)
	}
	return err
}

// lintExample checks a workflow that uses the action of a release as if it used the one of this repository, whose inputs
// are known.
func lintExample(text []byte) error {
	here := regexp.MustCompile(`caisson-run/caisson@v[0-9.]+`).ReplaceAll(text, []byte("./"))
	if bytes.Equal(here, text) {
		return errors.New("the action isn't used")
	}
	return lintWorkflow(here)
}

// TestWorkflows checks the workflows of this repository, and that each action of others is pinned.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%q, %v", files, err)
	}
	used := regexp.MustCompile(`uses: (.*)`)
	pinned := regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9.]+$|^\./`)
	for _, file := range append(files, "../../action.yml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range used.FindAllSubmatch(text, -1) {
			if !pinned.Match(m[1]) {
				t.Errorf("%s: %s is not pinned", file, m[1])
			}
		}
		if strings.HasSuffix(file, "action.yml") {
			continue
		}
		if err := lintWorkflow(text); err != nil {
			t.Error(err)
		}
		for _, key := range []string{"runs-on", "timeout-minutes", "permissions", "concurrency"} {
			if !bytes.Contains(text, []byte(key+":")) {
				t.Errorf("%s lacks %s", file, key)
			}
			if lintWorkflow(bytes.Replace(text, []byte(key+":"), []byte(key+"x:"), 1)) == nil {
				t.Errorf("%s: %sx is accepted", file, key)
			}
		}
	}
}

// TestDependabot: it looks at each module and package.json that isn't an example.
func TestDependabot(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string `json:"package-ecosystem"`
			Directories []string
		}
	}
	text, err := os.ReadFile("../../.github/dependabot.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, u := range config.Updates {
		got[u.Ecosystem] = u.Directories
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"github-actions": nil}
	for name := range strings.Lines(string(out)) {
		dir, file := path.Split("/" + strings.TrimSpace(name))
		ecosystem := map[string]string{"go.mod": "gomod", "package.json": "npm"}[file]
		if ecosystem != "" && !strings.HasPrefix(dir, "/examples/") {
			want[ecosystem] = append(want[ecosystem], path.Clean(dir))
		}
	}
	for _, dirs := range want {
		slices.Sort(dirs)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("directories (-repository +dependabot):\n%s", diff)
	}
}

// ciTools is a directory with programs from npm.
type ciTools string

func installCITools(t *testing.T) ciTools {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "ci"))); err != nil {
		t.Fatal(err)
	}
	if out, err := ciTools(dir).run("", "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		t.Fatalf("npm ci: %v: %s", err, out)
	}
	return ciTools(dir)
}

func (c ciTools) run(input, program string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = string(c), strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, &stderr)
	}
	return stdout.String(), nil
}

// checkGitLab has a program that runs jobs locally check the file. It has GitLab's own schema.
func (c ciTools) checkGitLab(text []byte) error {
	err := os.WriteFile(filepath.Join(string(c), ".gitlab-ci.yml"), text, 0o600)
	if err == nil {
		_, err = c.run("", "git", "init", "-q")
	}
	if err == nil {
		_, err = c.run("", "node_modules/.bin/gitlab-ci-local", "--list")
	}
	return err
}

// checkCircleCI has CircleCI's parser read the file. It ignores some unknown keys, so what it writes
// again is compared.
func (c ciTools) checkCircleCI(text []byte) error {
	const script = `process.stdout.write(require("@circleci/circleci-config-parser").parseConfig(require("fs").readFileSync(0, "utf8")).stringify())`
	again, err := c.run(string(text), "node", "-e", script)
	if err != nil {
		return err
	}
	var want, got map[string]any
	if err := errors.Join(yaml.UnmarshalStrict(text, &want), yaml.Unmarshal([]byte(again), &got)); err != nil {
		return err
	}
	delete(got, "setup") // which it adds
	if diff := cmp.Diff(want, got); diff != "" {
		return errors.New(diff)
	}
	return nil
}

// tektonTask is the part of Tekton's Task that the example uses. Tekton's module has all of it, but
// needs the clients of three clouds.
type tektonTask struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Params []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
			Default     string `json:"default"`
		} `json:"params"`
		Workspaces []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"workspaces"`
		Steps []struct {
			Name             string                      `json:"name"`
			Image            string                      `json:"image"`
			WorkingDir       string                      `json:"workingDir"`
			Env              []corev1.EnvVar             `json:"env"`
			Script           string                      `json:"script"`
			ComputeResources corev1.ResourceRequirements `json:"computeResources"`
			SecurityContext  *corev1.SecurityContext     `json:"securityContext"`
			VolumeMounts     []corev1.VolumeMount        `json:"volumeMounts"`
		} `json:"steps"`
		Volumes []corev1.Volume `json:"volumes"`
	} `json:"spec"`
}

func checkTekton(text []byte) error { return yaml.UnmarshalStrict(text, new(tektonTask)) }

// tektonPod returns the pod that Tekton makes of the Task, without Tekton's own containers.
func tektonPod(t *testing.T) pod {
	t.Helper()
	task := new(tektonTask)
	if err := yaml.UnmarshalStrict(readCI(t, "tekton.yaml"), task); err != nil {
		t.Fatal(err)
	}
	spec := corev1.PodSpec{Volumes: task.Spec.Volumes}
	for _, s := range task.Spec.Steps {
		spec.Containers = append(spec.Containers, corev1.Container{
			Name: s.Name, Image: s.Image, Command: []string{"sh"}, Args: []string{s.Script}, WorkingDir: s.WorkingDir, Env: s.Env,
			Resources: s.ComputeResources, SecurityContext: s.SecurityContext, VolumeMounts: s.VolumeMounts,
		})
	}
	return pod{name: task.Name, PodTemplateSpec: &corev1.PodTemplateSpec{Spec: spec}}
}

// ciScript is what a job runs, the commands that run even if it fails, and the variables that it
// gets besides. kept is the directory that the next job gets, results the one with the results. DIR
// is the directory of the test.
type ciScript struct{ text, always, env, kept, results string }

// ciScripts returns the scripts of all jobs but GitHub's, which is the action's: .ci/release tests that.
func ciScripts(t *testing.T) map[string]ciScript {
	t.Helper()
	var gitlab struct {
		Caisson struct{ Script []string }
	}
	var circle struct {
		Jobs struct{ Caisson struct{ Steps []any } }
	}
	for name, to := range map[string]any{"gitlab-ci.yml": &gitlab, "circleci.yml": &circle} {
		if err := yaml.Unmarshal(readCI(t, name), to); err != nil {
			t.Fatal(err)
		}
	}
	onCircle := ciScript{kept: "home/.cache/caisson/egress", results: "home/results"}
	for _, s := range circle.Jobs.Caisson.Steps {
		step, _ := s.(map[string]any) // a string without arguments
		if run, ok := step["run"].(map[string]any); ok {
			onCircle.add(run["command"].(string), run["when"] == "always")
		}
	}
	return map[string]ciScript{
		"gitlab-ci.yml": {text: strings.Join(gitlab.Caisson.Script, "\n"), kept: "checkout/.caisson-egress", results: "checkout/results"},
		"circleci.yml":  onCircle,
		"kubernetes.yaml": {
			text: readManifests(t, ciManifest).pods[0].Spec.Containers[0].Args[0], env: "HOSTNAME=pod XDG_CACHE_HOME=DIR/kept/cache",
			kept: "kept/cache/caisson/egress", results: "kept/results/pod",
		},
		"tekton.yaml": {
			text: tektonPod(t).Spec.Containers[0].Args[0], env: "VERIFY=true RESULTS=DIR/results XDG_CACHE_HOME=DIR/cache",
			kept: "cache/caisson/egress", results: "results",
		},
	}
}

func (s *ciScript) add(text string, always bool) {
	if always {
		s.always += text + "\n"
	} else {
		s.text += text + "\n"
	}
}

// releasedInstaller is the address of a release's install.sh.
var releasedInstaller = regexp.MustCompile(`https://github\.com/caisson-run/caisson/releases/download/v[0-9.]+/install\.sh`)

// installer stands for the install.sh of a release. Its Caisson writes down its arguments, makes a directory of records,
// adds to its cache, and ends like a run whose verification failed.
const installer = `PREFIX=${PREFIX:-$HOME/.local}
mkdir -p "$PREFIX/bin"
cat >"$PREFIX/bin/caisson" <<'END'
#!/bin/sh
printf '%s\n' "$@" >~/args
mkdir -p ~/.local/state/caisson/sessions
echo new >>"${XDG_CACHE_HOME:-$HOME/.cache}/caisson/egress/downloads"
exit 60
END
chmod 755 "$PREFIX/bin/caisson"
`

// TestCIScripts runs the script of each job, after an install.sh that refuses and one that installs. Caisson gets
// what the last job kept, valid arguments and settings, and its status is the job's.
func TestCIScripts(t *testing.T) {
	for name, script := range ciScripts(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			var err error
			for _, name := range []string{"bin", "checkout", "home", "results", "tmp", script.kept} {
				err = errors.Join(err, os.MkdirAll(at(name), 0o755))
			}
			downloads := at(script.kept + "/downloads")
			err = errors.Join(err, os.WriteFile(downloads, []byte("old\n"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			commit := exec.CommandContext(t.Context(), "sh", "-c", "git init -q && git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m one")
			commit.Dir = at("checkout")
			if out, err := commit.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			env := append(strings.Fields(strings.ReplaceAll(script.env, "DIR", dir)), "HOME="+at("home"), "PATH="+at("bin")+":"+os.Getenv("PATH"),
				"REPOSITORY=file://"+at("checkout"))
			run := func(text, install string) (int, string) {
				if err := os.WriteFile(at("install.sh"), []byte(install), 0o600); err != nil {
					t.Fatal(err)
				}
				text = strings.NewReplacer("/usr/local", dir, "/tmp", at("tmp"), "/kept", at("kept")).Replace(text)
				cmd := exec.CommandContext(t.Context(), "sh", "-euc", releasedInstaller.ReplaceAllLiteralString(text, "file://"+at("install.sh")))
				cmd.Dir = at("checkout")
				if name == "kubernetes.yaml" { // it makes a checkout
					cmd.Dir = at("home")
				}
				cmd.Env = env
				out, _ := cmd.CombinedOutput() // the status tells
				return cmd.ProcessState.ExitCode(), string(out)
			}
			if status, out := run(script.text, installer+"echo it refuses; exit 1"); status == 0 || !strings.Contains(out, "it refuses") {
				t.Errorf("with a forged release: status %d: %s", status, out)
			}
			if _, err := os.Stat(at("home/args")); err == nil {
				t.Error("a forged program was run")
			}
			if status, out := run(script.text, installer); status != 60 {
				t.Fatalf("status %d: %s", status, out)
			}
			if status, out := run(script.always, installer); status != 0 {
				t.Errorf("status %d: %s", status, out)
			}
			if _, err := os.Stat(at(script.results + "/records.tar")); err != nil {
				t.Error(err)
			}
			if text, err := os.ReadFile(downloads); string(text) != "old\nnew\n" {
				t.Errorf("kept %q, %v", text, err)
			}
			args, err := os.ReadFile(at("home/args"))
			if err == nil {
				err = caisson(t, strings.Split(strings.TrimSpace(string(args)), "\n"))
			}
			if err != nil {
				t.Error(err)
			}
			show := exec.CommandContext(t.Context(), program(), "config", "show")
			show.Env = env
			if out, err := show.CombinedOutput(); err != nil || !strings.Contains(string(out), "egress.cache               shared") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
