//go:build linux

// Command mutate tests the tests: it changes the package under test in small
// ways, one at a time, and reports the changes that no test notices.
//
// A package is compiled once, with all its mutants in it, each behind a switch.
// One run of every test by itself shows which mutants it reaches; each mutant
// is then tried with the tests that reach it. Only the package's own tests
// count, with -short, and those of the packages that -with names.
//
// The exit status is 1 if a mutant survived that the file of -explained does not
// name, and 2 if there was an error.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type options struct {
	goTool, files, match, with, run, output, explained string
	sample, workers                                    int
	seed                                               uint64
	least                                              time.Duration
	list                                               bool
	only                                               int
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == initArgument {
		os.Exit(isolatedInit(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.goTool, "go", "go", "the go command")
	flag.StringVar(&o.files, "files", "", "regular expression of the files to change, from the module's root")
	flag.StringVar(&o.match, "match", "", "regular expression of the mutants to try, as they are printed")
	flag.StringVar(&o.with, "with", "", "further packages whose tests count, separated by commas")
	flag.StringVar(&o.run, "run", "", "regular expression of the tests that count")
	flag.StringVar(&o.output, "o", "", "file to append a line of JSON for each mutant to")
	flag.StringVar(&o.explained, "explained", "", "file that names the survivors that are accepted")
	flag.IntVar(&o.sample, "sample", 0, "try only that many mutants of each package, chosen by -seed")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of -sample")
	flag.IntVar(&o.workers, "j", 2, "runs at the same time")
	flag.DurationVar(&o.least, "timeout", 10*time.Second, "least time before a run counts as hanging; five times its baseline if that is more")
	flag.BoolVar(&o.list, "list", false, "print the mutants and try none")
	flag.IntVar(&o.only, "only", 0, "try only the mutant with this number and print what its tests print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	unexplained, err := run(ctx, o, flag.Args())
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	case unexplained > 0:
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, packages []string) (unexplained int, err error) {
	if len(packages) == 0 {
		return 0, fmt.Errorf("no package given")
	}
	list, err := exec.CommandContext(ctx, o.goTool, append([]string{"list"}, packages...)...).Output()
	if err != nil {
		return 0, fmt.Errorf("go list: %w", err)
	}
	var rows []row
	for pattern := range strings.FieldsSeq(string(list)) {
		r, err := mutatePackage(ctx, o, pattern)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", pattern, err)
		}
		rows = append(rows, r)
		unexplained += r.survived + r.notCovered
	}
	if !o.list {
		printTable(os.Stdout, rows)
	}
	return unexplained, nil
}

func mutatePackage(ctx context.Context, o options, pattern string) (row, error) {
	files, err := regexp.Compile(o.files)
	if err != nil {
		return row{}, err
	}
	match, err := regexp.Compile(o.match)
	if err != nil {
		return row{}, err
	}
	tests, err := regexp.Compile(o.run)
	if err != nil {
		return row{}, err
	}
	p, err := load(o.goTool, pattern, files)
	if err != nil {
		return row{}, err
	}
	if err := p.dropInvalid(); err != nil {
		return row{}, err
	}
	r := row{pkg: p.ImportPath, invalid: countDropped(p.mutants)}
	chosen := p.choose(o, match)
	if o.list {
		for _, m := range chosen {
			fmt.Printf("%d\t%d\t%s\n", m.ID, m.Line, m.Key)
		}
		return r, nil
	}
	// Not below /tmp, which is another one for the tests.
	cache, err := os.UserCacheDir()
	if err != nil {
		return r, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return r, err
	}
	scratch, err := os.MkdirTemp(cache, "mutate")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil {
		return r, err
	}
	s := &suite{goTool: o.goTool, scratch: scratch, run: tests, least: o.least}
	if err := s.prepare(ctx, o, p, pattern); err != nil {
		return r, err
	}
	for _, b := range s.binaries {
		for _, name := range b.failing {
			fmt.Printf("left out, fails without a mutant: %s %s\n", b.pkg, name)
		}
	}
	known, err := readExplained(o.explained)
	if err != nil {
		return r, err
	}
	w, err := newReporter(o.output, known)
	if err != nil {
		return r, err
	}
	defer w.close()
	err = inParallel(o.workers, len(chosen), func(worker, i int) error {
		v, by, output, err := s.try(ctx, worker, chosen[i].ID)
		if err == nil {
			w.report(&r, chosen[i], v, by)
		}
		if o.only != 0 {
			os.Stdout.Write(output)
		}
		return err
	})
	return r, err
}

func (s *suite) prepare(ctx context.Context, o options, p *program, pattern string) error {
	if err := s.writeOverlay(p); err != nil {
		return err
	}
	for _, pkg := range append([]string{pattern}, splitList(o.with)...) {
		if err := s.compile(pkg); err != nil {
			return err
		}
	}
	return s.trace(ctx, o.workers)
}

// choose drops the mutants that are not tried and returns the others.
func (p *program) choose(o options, match *regexp.Regexp) []*mutant {
	chosen := slices.DeleteFunc(slices.Clone(p.mutants), func(m *mutant) bool {
		return m.dropped || o.only != 0 && m.ID != o.only || !match.MatchString(m.Key)
	})
	if o.sample > 0 && o.sample < len(chosen) {
		r := rand.New(rand.NewPCG(o.seed, 0))
		r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		for _, m := range chosen[o.sample:] {
			m.dropped = true
		}
		chosen = chosen[:o.sample]
		slices.SortFunc(chosen, func(a, b *mutant) int { return a.ID - b.ID })
	}
	return chosen
}

func countDropped(mutants []*mutant) (n int) {
	for _, m := range mutants {
		if m.dropped {
			n++
		}
	}
	return n
}

// inParallel calls do for 0 to n-1 on the workers, until one returns an error.
func inParallel(workers, n int, do func(worker, i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	var failed atomic.Bool
	for worker := range workers {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || failed.Load() {
					return
				}
				if err := do(worker, i); err != nil {
					errs[worker] = err
					failed.Store(true)
					return
				}
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func splitList(text string) []string {
	return regexp.MustCompile(`[^,\s]+`).FindAllString(text, -1)
}
