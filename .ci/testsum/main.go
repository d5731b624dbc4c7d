// Command testsum runs `go test -json` commands one after the other and says
// what came of them: the output of what failed, a line a package, every skip
// with its reason, and last the counts.
//
//	testsum [-strict] [-retry N] [-go GO] -- ARGS [-- ARGS]...
//
// Each ARGS follows `go test -json`. It ends with status 1 if anything
// failed, if nothing ran, or, with -strict, if anything was skipped. With -retry,
// where N tests or fewer of a command failed, each of them runs once more, alone.
// One that passes then is flaky: it is counted and listed, and fails nothing.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	strict := flag.Bool("strict", false, "a skip is a failure")
	retry := flag.Int("retry", 0, "the most failed tests of a command that run once more")
	goTool := flag.String("go", "go", "the go command")
	flag.Parse()
	sum := NewSummary(os.Stdout)
	for _, args := range split(flag.Args(), "--") {
		err := runTests(*goTool, args, sum)
		if err == nil {
			err = retryTests(*goTool, args, *retry, sum)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(1)
		}
	}
	sum.Print()
	if !sum.Good(*strict) {
		os.Exit(1)
	}
}

// split cuts args at each separator; empty pieces are dropped.
func split(args []string, separator string) [][]string {
	var pieces [][]string
	for len(args) > 0 {
		i := slices.Index(args, separator)
		if i < 0 {
			i = len(args)
		}
		if i > 0 {
			pieces = append(pieces, args[:i])
		}
		args = args[min(i+1, len(args)):]
	}
	return pieces
}

// runTests runs one go test and feeds its events to sum. Failing tests are no
// error of it; a command that fails without having reported a failure is.
func runTests(goTool string, args []string, sum *Summary) error {
	command := exec.Command(goTool, goTestArgs(args)...)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	before := sum.Failures()
	readErr := readEvents(out, sum)
	err = command.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && sum.Failures() > before {
		err = nil
	}
	return errors.Join(readErr, err)
}

// retryTests runs the tests of a command that failed again, one after the other, if
// there are at most a few. A package that failed by itself is not among them.
func retryTests(goTool string, args []string, most int, sum *Summary) error {
	var roots []testKey
	for _, k := range sum.failed {
		if root := (testKey{k.pkg, rootOf(k.test)}); k.test != "" && !sum.retried[root] {
			sum.retried[root] = true
			roots = append(roots, root)
		}
	}
	if len(roots) > most {
		return nil
	}
	for _, root := range roots {
		fmt.Fprintf(sum.out, "again, alone: %s\n", root)
		again := NewSummary(sum.out)
		if err := runTests(goTool, retryArgs(args, root), again); err != nil {
			return err
		}
		if again.Good(false) {
			sum.MarkFlaky(root.pkg, root.test)
		}
	}
	return nil
}

// retryArgs are the arguments that run one test with the flags of a command.
func retryArgs(args []string, root testKey) []string {
	var flags []string
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") || i == 1 && args[0] == "-C" {
			flags = append(flags, arg)
		}
	}
	return append(flags, "-run=^"+root.test+"$", root.pkg)
}

// goTestArgs puts -json behind test, but -C, which must come first, before it.
func goTestArgs(args []string) []string {
	full := []string{"test"}
	if len(args) > 1 && args[0] == "-C" {
		full, args = append(full, args[:2]...), args[2:]
	}
	return append(append(full, "-json"), args...)
}

// readEvents reads one JSON event a line; what is no event is printed.
func readEvents(r io.Reader, sum *Summary) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			sum.AddLine(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
