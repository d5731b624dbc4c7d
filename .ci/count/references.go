package main

import (
	"go/token"
	"go/types"
	"slices"
)

// countReferences counts the uses of declarations of other files of the
// package, and those of them that run upward: against the order of the files
// that has the least of them, as far as a local search finds it. A package whose
// files form layers has none.
func countReferences(fset *token.FileSet, pkg *types.Package, info *types.Info) (references, upward int) {
	index := map[string]int{}
	uses := map[[2]int]int{}
	file := func(at token.Pos) int {
		name := fset.Position(at).Filename
		i, known := index[name]
		if !known {
			i = len(index)
			index[name] = i
		}
		return i
	}
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !isDeclaration(pkg, object) {
			continue
		}
		if from, to := file(ident.Pos()), file(object.Pos()); from != to {
			uses[[2]int{from, to}]++
			references++
		}
	}
	place := make([]int, len(index))
	for i, f := range orderFiles(len(index), uses) {
		place[f] = i
	}
	for edge, n := range uses {
		if place[edge[0]] > place[edge[1]] {
			upward += n
		}
	}
	return references, upward
}

// isDeclaration reports whether an object is declared at the top of a package,
// or is a method. Fields are left out.
func isDeclaration(pkg *types.Package, object types.Object) bool {
	if f, ok := object.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return object.Parent() == pkg.Scope()
}

// orderFiles returns the files, users before what they use. It moves one file at
// a time to its best place, until no move makes fewer uses run upward.
func orderFiles(n int, uses map[[2]int]int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	for moved := true; moved; {
		moved = false
		for i := range order {
			if j := bestPlace(order, i, uses); j != i {
				f := order[i]
				order = slices.Insert(slices.Delete(order, i, i+1), j, f)
				moved = true
			}
		}
	}
	return order
}

// bestPlace returns where the file at place i has the fewest uses that run
// upward, or i if no place is better.
func bestPlace(order []int, i int, uses map[[2]int]int) int {
	best, least := i, 0
	for _, step := range []int{-1, 1} {
		change := 0
		for j := i + step; j >= 0 && j < len(order); j += step {
			// The use that points from the later to the earlier file runs upward.
			up, down := uses[[2]int{order[i], order[j]}], uses[[2]int{order[j], order[i]}]
			change += step * (up - down)
			if change < least {
				best, least = j, change
			}
		}
	}
	return best
}
