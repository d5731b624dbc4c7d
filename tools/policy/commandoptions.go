package policy

import (
	"path"
	"slices"
	"strings"
)

// knownSubcommands returns the known subcommands of a program that also takes other
// words there: an alias from the workspace's configuration, a script, an
// abbreviation, a program in PATH. It is "" for other programs. No known subcommand
// runs a program that its arguments name.
func knownSubcommands(program string) string {
	switch program {
	case "cargo":
		return "add b bench build c check clean clippy d doc fetch fmt generate-lockfile init locate-project metadata new package pkgid remove search t test tree update vendor verify-project version"
	case "dotnet":
		return "build clean list pack publish restore test"
	case "git":
		return "add am annotate apply archive bisect blame branch cat-file check-ignore checkout cherry cherry-pick clean clone commit count-objects describe diff diff-tree fetch format-patch fsck gc grep init log ls-files ls-remote ls-tree merge merge-base mv name-rev notes pull push range-diff rebase reflog remote reset restore rev-list rev-parse revert rm shortlog show show-ref sparse-checkout stash status submodule switch symbolic-ref tag version worktree"
	case "npm", "pnpm", "yarn":
		return "add audit ci i info install list ls outdated pack prune remove rm t test uninstall update version view why"
	}
	return ""
}

// isHarmlessOption reports whether an option is known to name no program, no file
// to execute and no other directory. Unknown options are not harmless: lists of
// harmful ones miss abbreviations, clusters and new options.
func isHarmlessOption(program, word string) bool {
	name, _, hasValue := strings.Cut(word, "=")
	program = strings.TrimRight(path.Base(program), "0123456789.")
	if slices.Contains([]string{"--verbose", "--quiet", "--help", "--version", "--no-color", "-v", "-q", "-V"}, word) {
		return true
	}
	if slices.Contains([]string{"--color", "--colour"}, name) {
		return true
	}
	known := strings.Fields(harmlessOptions(program))
	if program == "go" { // one dash or two, and no clusters
		return slices.Contains(known, "-"+strings.TrimLeft(name, "-")) && strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "---")
	}
	if slices.Contains(known, name) {
		return strings.HasPrefix(name, "--") || !hasValue
	}
	letters := strings.TrimRight(strings.TrimPrefix(word, "-"), "0123456789")
	if strings.HasPrefix(word, "--") || letters == "" && !slices.Contains([]string{"git", "grep", "head", "tail"}, program) {
		return false
	}
	for _, letter := range letters {
		if !slices.Contains(known, "-"+string(letter)) {
			return false
		}
	}
	return true
}

// harmlessOptions returns a program's harmless options, which may have any value.
// Short ones may be joined with each other and with a number.
func harmlessOptions(program string) string {
	switch program {
	case "go":
		return "-a -bench -benchmem -benchtime -count -cover -covermode -cpu -deps -failfast -fuzz -fuzztime -json -list -mod -n -p -parallel -race -run -short -shuffle -skip -tags -test -timeout -trimpath -v -vet -x"
	case "make", "gmake":
		return "-B -i -j -k -l -n -q -s -w --always-make --dry-run --ignore-errors --jobs --just-print --keep-going --no-print-directory --output-sync --silent --question --trace"
	case "ninja":
		return "-j -k -l -n -v --quiet --verbose"
	case "cargo":
		return "-F -j -p -q -r -v --all --all-features --all-targets --bench --benches --bin --bins --doc --example --examples --exact --exclude --features --frozen --ignored --include-ignored --jobs --keep-going --lib --locked --message-format --no-default-features --no-fail-fast --no-run --nocapture --offline --package --release --show-output --skip --test --test-threads --tests --workspace"
	case "npm", "pnpm", "yarn":
		return "-s --if-present --ignore-scripts --no-audit --no-fund --offline --prefer-offline --production --silent --workspaces"
	case "pytest":
		return "-k -l -m -n -q -r -s -v -x --co --collect-only --durations --exitfirst --failed-first --ff --last-failed --lf --maxfail --new-first --nf --no-header --no-summary --showlocals --stepwise --sw --tb"
	case "git":
		return "-n -p -w --abbrev-commit --all --author --cached --decorate --follow --graph --grep --max-count --name-only --name-status --numstat --oneline --patch --porcelain --short --shortstat --since --staged --stat --until"
	case "grep", "egrep", "fgrep", "rg":
		return "-A -B -C -E -F -H -L -S -U -c -g -h -i -l -n -o -q -r -s -t -v -w -x --after-context --before-context --context --count --exclude --exclude-dir --files-with-matches --fixed-strings --glob --hidden --ignore-case --include --line-number --no-heading --only-matching --smart-case --type --word-regexp"
	case "ls":
		return "-1 -A -F -L -R -S -a -d -h -i -l -n -p -r -s -t --all --almost-all --human-readable --recursive --reverse --sort --time"
	case "cat", "head", "tail", "wc":
		return "-A -E -T -b -c -e -l -m -n -s -t -w --bytes --chars --lines --words"
	case "mvn", "mvnw":
		return "-B -T -e -o -q -U --batch-mode --errors --offline --also-make -am"
	case "gradle", "gradlew":
		return "-q --continue --info --no-daemon --offline --stacktrace --tests --warning-mode"
	}
	return ""
}
