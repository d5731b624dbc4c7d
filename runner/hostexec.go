package runner

import (
	"path"
	"slices"
	"strings"
)

// hostRule names a program of the host that runs or obeys certain files.
type hostRule struct {
	by    string
	names []string // base names, anywhere
	dirs  []string // folders of this name, at any depth: everything below
	ends  []string // suffixes of the base name
}

// hostRules are files whose change can run code on the host later, without
// anybody meaning to run them: CI definitions, build files, hooks, editor and
// shell settings, and the instructions of agents. Two examples of why:
// CVE-2025-61260 (an agent's own configuration in a project), CVE-2026-19592
// (git's fsmonitor).
func hostRules() []hostRule {
	return []hostRule{
		{
			by: "CI", names: []string{".gitlab-ci.yml", ".travis.yml", ".drone.yml", "Jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml", "appveyor.yml", ".cirrus.yml"},
			dirs: []string{".github", ".circleci", ".buildkite", ".woodpecker", ".gitea", ".forgejo", ".ci"},
		},
		{by: "make", names: []string{"Makefile", "makefile", "GNUmakefile"}, ends: []string{".mk"}},
		{
			by: "a build tool", names: []string{"CMakeLists.txt", "meson.build", "configure", "configure.ac", "justfile", "Justfile", "Taskfile.yml", "Taskfile.yaml", "Rakefile", "BUILD", "BUILD.bazel", "WORKSPACE", "MODULE.bazel", ".bazelrc", "Directory.Build.props", "Directory.Build.targets", "Earthfile", "Tiltfile"},
			ends: []string{".cmake", ".csproj", ".fsproj", ".vcxproj", ".bzl"},
		},
		{by: "gradle or maven", names: []string{"gradlew", "gradlew.bat", "mvnw", "mvnw.cmd", "pom.xml"}, ends: []string{".gradle", ".gradle.kts"}, dirs: []string{".mvn"}},
		{by: "cargo", names: []string{"Cargo.toml", "build.rs", "rust-toolchain", "rust-toolchain.toml"}, dirs: []string{".cargo"}},
		{by: "go", names: []string{"go.mod", "go.work"}},
		{by: "npm, yarn or pnpm", names: []string{"package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnp.cjs", ".pnpmfile.cjs", "pnpm-workspace.yaml", "binding.gyp"}, dirs: []string{".yarn"}},
		{by: "Python", names: []string{"setup.py", "setup.cfg", "pyproject.toml", "tox.ini", "noxfile.py", "conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini"}, ends: []string{".pth"}},
		{by: "Ruby or PHP", names: []string{"Gemfile", ".bundle", "composer.json"}, ends: []string{".gemspec"}},
		{by: "Nix", names: []string{"flake.nix", "shell.nix", "default.nix"}},
		{by: "a container engine", names: []string{"Dockerfile", "Containerfile", "docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml", "Vagrantfile"}, dirs: []string{".devcontainer"}},
		{by: "git", names: []string{".gitmodules", ".gitattributes", ".gitconfig", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml"}, dirs: []string{".git", ".githooks", ".husky"}},
		{by: "an editor", names: []string{".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".dir-locals.el"}, dirs: []string{".vscode", ".idea", ".zed", ".vim", ".nvim", ".fleet"}, ends: []string{".code-workspace"}},
		{by: "a shell", names: []string{".envrc", ".env", ".tool-versions", "mise.toml", ".mise.toml", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv"}, dirs: []string{".direnv", ".mise"}},
		{by: "an agent", names: []string{".mcp.json", "AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "GEMINI.md", ".cursorrules"}, dirs: []string{".caisson", ".claude", ".codex", ".cursor", ".gemini", ".agents", ".opencode"}},
	}
}

// hostExecuted lists the changed files that a program of the host would run
// or obey, and the deleted ones that bounded it.
func hostExecuted(changed []Changed) []HostExecuted {
	rules := hostRules()
	var out []HostExecuted
	for _, c := range changed {
		gone := c.Change == "deleted"
		if gone && !bounds().matches(c.Path) {
			continue // a file that is gone runs nothing
		}
		if i := slices.IndexFunc(rules, func(r hostRule) bool { return r.matches(c.Path) }); i >= 0 {
			out = append(out, HostExecuted{Path: c.Path, By: rules[i].by, Deleted: gone})
		}
	}
	return out
}

// bounds are files that can forbid something: without them more is allowed, so
// that their deletion is told of too. A workspace's own settings are such, those
// of a folder below it included.
func bounds() hostRule {
	return hostRule{names: []string{".mcp.json"}, dirs: []string{".caisson"}}
}

func (r hostRule) matches(p string) bool {
	base := path.Base(p)
	if slices.Contains(r.names, base) || slices.ContainsFunc(r.ends, func(end string) bool { return strings.HasSuffix(base, end) }) {
		return true
	}
	for dir := range strings.SplitSeq(path.Dir(p), "/") {
		if slices.Contains(r.dirs, dir) {
			return true
		}
	}
	return false
}
