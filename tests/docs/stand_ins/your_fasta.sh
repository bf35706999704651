# Makes data/proteins.fa: 120 random proteins, instead of the download of docs/tutorials/your_fasta.md.
mkdir -p data
awk 'BEGIN {
  srand(1)
  for (i = 1; i <= 120; ++i) {
    printf ">protein_%d\nM", i
    for (j = 30 + int(60 * rand()); j > 0; --j) printf "%s", substr("ACDEFGHIKLMNPQRSTVWY", 1 + int(20 * rand()), 1)
    print ""
  }
}' >data/proteins.fa
