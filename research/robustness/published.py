"""What DP-CERT prints, beside which our own numbers stand."""

TABLE_2_MNIST: dict[tuple[float, str], tuple[float, float, float]] = {
    (0.25, "regular"): (99.14, 0.581, 83.6),
    (0.25, "dp-sgd"): (98.13, 0.606, 88.3),
    (0.25, "psac"): (98.25, 0.608, 88.5),
    (0.25, "dp-gaussian"): (98.13, 0.735, 95.7),
    (0.25, "dp-smoothadv"): (98.08, 0.742, 96.0),
    (0.25, "dp-stability"): (97.86, 0.738, 95.9),
    (0.25, "dp-macer"): (98.13, 0.736, 95.6),
    (0.5, "regular"): (99.14, 0.308, 31.8),
    (0.5, "dp-sgd"): (98.13, 0.344, 50.0),
    (0.5, "psac"): (98.25, 0.383, 55.9),
    (0.5, "dp-gaussian"): (97.74, 1.246, 94.7),
    (0.5, "dp-smoothadv"): (97.66, 1.258, 94.8),
    (0.5, "dp-stability"): (97.62, 1.248, 94.6),
    (0.5, "dp-macer"): (97.75, 1.246, 94.7),
    (1.0, "regular"): (99.14, 0.257, 10.7),
    (1.0, "dp-sgd"): (98.13, 0.260, 10.4),
    (1.0, "psac"): (98.25, 0.213, 20.0),
    (1.0, "dp-gaussian"): (96.33, 1.262, 85.6),
    (1.0, "dp-smoothadv"): (96.54, 1.249, 85.0),
    (1.0, "dp-stability"): (96.48, 1.262, 84.9),
    (1.0, "dp-macer"): (96.31, 1.262, 85.5),
}
"""(σ, method) to clean accuracy in %, ACR, certified accuracy in % at r = 0.25 (Table
2)."""

QUOTED_FIG_3 = (
    (
        "TransDenoiser is less than 40 % better than the next strongest baseline,"
        " SecureSGD"
    ),
    "the best DP-CERT is over 250 % better than TransDenoiser at an L2 radius of 0.7",
)
"""All that the text says in numbers of Fig. 3's baselines (Sec. 5); its curves are a
picture."""

WHY_QUOTED = (
    "Fig. 3 compares SecureSGD, StoBatch and TransDenoiser on CIFAR-10. Its authors ran"
    " none of them: they copied the curves from Tang et al. (Sec. 4.1, App. D.1). The"
    " text names parts (a heterogeneous Gaussian mechanism; an autoencoder with"
    " objective perturbation; a VGG16 with a denoiser and a multivariate Gaussian"
    " mechanism) but no budget split, noise scale, architecture of autoencoder or"
    " denoiser, learning rate, or number of rounds, and those fix the curves. Whatever"
    " one trained from this text would be another method under their names."
)
