// Command count prints figures about packages for reviewers: the phrases that
// comments should avoid, the share of one-word names, and the size, exports and
// inner references of each package. Tests and generated files are left out.
//
//	count [packages]
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	goTool := flag.String("go", "go", "the go command")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	packages, err := load(*goTool, patterns)
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(2)
	}
	var total figures
	for _, p := range packages {
		total.add(p.figures)
	}
	print(os.Stdout, packages, total)
}
